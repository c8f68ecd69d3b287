"""After warm-up nothing compiles, whatever a request asks for, and whatever is drafted."""

import jax.numpy as jnp
import numpy as np

from jaxspec import decode, telemetry
from jaxspec.sampling import warpers
from tests.decode.engines import plain, run, scripted, tiny_engine
from tests.decode.schedule import always, shuffled
from tests.decode.test_greedy import PROMPTS

LONG = [[1], [2] * 20, [3] * 60, [4] * 65]


def compiled_by(function, *args, **options):
    before = telemetry.compilations()
    function(*args, **options)
    return telemetry.compilations() - before


def test_no_source_lookahead_bucket_or_request_value_compiles_after_warm_up():
    engine = tiny_engine("coupled")
    for prompts in (PROMPTS, LONG):  # every prefill width there is
        run(engine, prompts, always(4, 1, 1), max_new_tokens=4)
    drafts = scripted(engine, PROMPTS, [[1] * 30] * 4)
    for source in range(5):
        for lookahead in range(5):
            assert compiled_by(run, engine, PROMPTS, always(4, source, lookahead), drafts, max_new_tokens=12) == 0
    options = {
        "max_new_tokens": [1, 30, 7, 100],
        "stop_ids": [[], [1], [2, 3], [4, 5, 6]],
        "seed": None,
        "warp": warpers(4, temperature=[0, 1, 2, 3], top_k=3, top_p=0.9, min_p=0.1, bias={3: -1.0}, min_tokens=3),
        "max_lookahead": [0, 1, 2, 4],
        "draft_temperature": [0.0, 0.5, 1.0, 2.0],
        "draft_confidence": [0.0, 0.3, 0.6, 0.9],
    }
    for prompts in (PROMPTS, LONG, [[7]] * 4):
        assert compiled_by(run, engine, prompts, shuffled(4, [0, 1, 2, 3, 4], 4, 0), **options) == 0


def test_the_plain_loop_does_not_compile_again_for_another_request():
    engine = tiny_engine("coupled")
    plain(engine, PROMPTS, max_new_tokens=3)
    warp = warpers(4, temperature=[0, 1, 2, 3], repetition_penalty=1.2)
    assert compiled_by(plain, engine, PROMPTS, max_new_tokens=[9, 1, 2, 30], warp=warp, seed=4, stop_ids=[1]) == 0


def test_chunks_and_halts_do_not_compile():
    engine, options = tiny_engine("coupled"), {"max_new_tokens": 12}
    run(engine, PROMPTS, **options)

    nothing = jnp.full((4, engine.capacity), -1, jnp.int32)
    params = decode.EngineParams(engine.params.target, {**engine.params.drafts, "script": nothing}, always(4, 0, 0))

    def chunks():
        request = decode.make_request(engine.setup, PROMPTS, **options)
        state = decode.start(engine.setup, engine.params, PROMPTS, request, capacity=engine.capacity)
        halts = iter([[False] * 4] * 3 + [[True, False, False, False]] * 100)
        for _ in decode.stream(engine.setup, params, state, chunk=2, halt=lambda: np.asarray(next(halts))):
            pass

    assert compiled_by(chunks) == 0


def test_the_count_sees_a_compilation():
    engine, request = tiny_engine("coupled"), {"max_new_tokens": 2}
    decode.make_request(engine.setup, PROMPTS, **request)
    assert compiled_by(decode.make_request, engine.setup, PROMPTS, **request) == 0
    assert compiled_by(prefilled_at, engine, 257) > 0, "a static size changed"


def prefilled_at(engine, capacity):
    request = decode.make_request(engine.setup, PROMPTS, max_new_tokens=2)
    decode.start(engine.setup, engine.params, PROMPTS, request, capacity=capacity)
