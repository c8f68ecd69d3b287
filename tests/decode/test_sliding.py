"""Sliding-window layers whose ring has wrapped, with rejections in between, equal full recomputation."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec import decode
from jaxspec.decode.state import init_state
from tests.decode.engines import FOREVER, Engine, began, host, plain_setup, run, scripted
from tests.decode.schedule import always, scheduled, script, shuffled
from tests.decode.test_greedy import wrong
from tests.decode.tiny import DRAFT, TARGET, VOCAB, continued, model_of, whole_pass
from tests.drafts.oracle import own_logits, proposals

WINDOW = 8
SLIDING = dataclasses.replace(TARGET, family="mistral", windows=(WINDOW, None))
DRAFTING = dataclasses.replace(DRAFT, family="mistral", windows=(WINDOW,), max_positions=512)


@functools.cache
def engine(*, alone=False):
    model, params = model_of(SLIDING, 2, 1.6)
    draft, draft_params = model_of(DRAFTING, 3, 0.5)
    setup = decode.make_setup(
        model,
        drafts=(script(3),) if alone else (script(3), ("lm:d", draft), "exit:1"),
        select=scheduled(3),
        lookahead=3,
        windows=(1, 4),
        vocab_size=VOCAB,
    )
    return Engine(setup, plain_setup(model, VOCAB), decode.EngineParams(params, {"lm:d": draft_params}, ()), 640)


def is_recomputed(prompts, outputs):
    """Every token is the argmax of one pass over the whole text, which has no cache to go wrong."""
    longest = 64 * -(-max(len(p) + len(o) for p, o in zip(prompts, outputs, strict=True)) // 64)
    text = np.zeros((len(prompts), longest), np.int32)
    for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        text[row, : len(prompt) + len(output)] = prompt + output
    best = np.asarray(jnp.argmax(whole_pass(engine().setup.target, engine().params.target, text)[..., :VOCAB], -1))
    for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        assert output == best[row, len(prompt) - 1 : len(prompt) + len(output) - 1].tolist()


def test_rings_that_prefill_has_wrapped_stay_right_through_rejections():
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, VOCAB, n).tolist() for n in (300, 5)]
    limits = {"max_new_tokens": [40, 300]}  # a ring of 8 + 256 slots; both rows wrap it
    _, state = began(engine(), prompts, **limits)
    rings, draft = state.cache.rings, state.sources[engine().source("lm:d")].cache.rings
    assert rings == (WINDOW + 256, None)
    assert draft == (WINDOW + 64,)
    guess = run(engine(), prompts, always(2, engine().source("lm:d"), 3), **limits).tokens
    is_recomputed(prompts, guess)
    drafts = scripted(engine(), prompts, wrong(guess, VOCAB, share=0.3))
    got = run(engine(), prompts, shuffled(2, [0, 1, 2, 3], 3, 0), drafts, **limits)
    is_recomputed(prompts, got.tokens)
    rejected = (got.state.counters.proposed - got.state.counters.accepted).sum((0, 2))
    assert (rejected[1:] > 0).all()


@pytest.mark.parametrize("name", ["lm:d", "exit:1"])
def test_drafts_with_wrapped_rings_are_those_of_one_pass_over_the_text(name):
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, VOCAB, n).tolist() for n in (300, 5)]
    source, layers = engine().source(name), None if name == "lm:d" else (0, 1)
    got = run(engine(), prompts, shuffled(2, [0, 1, source, source], 3, 1), max_new_tokens=[40, 110])
    drafted = proposals(got, source)
    assert max(len(each.prefix) for each in drafted) > 300
    assert len(drafted) > 20
    setup, params = engine().setup, engine().params
    model = setup.target if layers else setup.sources[source].propose.args[0].model
    logits = own_logits(model, params.target if layers else params.drafts[name], drafted, layers=layers)
    for each, own in zip(drafted, logits, strict=True):
        assert each.drafts == own[:, :VOCAB].argmax(-1).tolist()


def wraps_a_small_ring(headroom):
    """From one-token prompts: no prefill, so the ring may have just the room that a round's window needs."""
    own, prompts, slots = engine(alone=True), [[3], [20]], 64
    guess = continued(own.setup.target, own.params.target, prompts, 56)
    request = decode.make_request(own.setup, prompts, max_new_tokens=55)
    tokens = jnp.zeros((2, slots), jnp.int32).at[:, 0].set(jnp.asarray([3, 20], jnp.int32))
    state = init_state(own.setup, tokens, request, headroom=headroom)
    assert state.cache.rings == (WINDOW + headroom, None)
    drafts = {"script": jnp.asarray(scripted(own, prompts, wrong(guess, VOCAB, share=0.3))[:, :slots])}
    params = decode.EngineParams(own.params.target, drafts, shuffled(2, [0, 1, 1, 1], 3, 1))
    state, _ = decode.loop(own.setup, params, state, FOREVER, np.zeros(2, bool))
    is_recomputed(prompts, host(state).tokens)


def test_a_ring_needs_room_for_rejected_tokens_and_no_more():
    wraps_a_small_ring(4)
    with pytest.raises(ValueError, match="headroom"):
        wraps_a_small_ring(2)  # rejected entries would overwrite what the window still sees
