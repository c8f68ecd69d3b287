"""In coupled verification a seed's output is the plain loop's, whatever source, lookahead, schedule, batch or slot."""

import numpy as np
import pytest

from jaxspec import decode
from jaxspec.sampling import warpers
from tests.decode.engines import TABLE_ROWS, TABLE_VOCAB, began, host, plain, run, scripted, table_engine, tiny_engine
from tests.decode.schedule import Plan, always, shuffled
from tests.decode.test_greedy import LIMITS, PROMPTS, table_prompts, total, wrong

SETTINGS = {
    "temperature": [1.5, 0.0, 0.8, 2.5],
    "top_k": [0, 0, 5, 12],
    "top_p": [1.0, 1.0, 0.9, 0.8],
    "min_p": [0.0, 0.0, 0.02, 0.0],
}


def settings(**more):
    return warpers(4, **SETTINGS, **more)


def random_settings(seed, rows=TABLE_ROWS, vocab=TABLE_VOCAB):
    """Every warper and penalty, on in about half of the rows each."""
    rng = np.random.default_rng(seed)

    def sometimes(off, low, high, whole=False):
        values = rng.integers(low, high, rows) if whole else rng.uniform(low, high, rows)
        return np.where(rng.random(rows) < 0.5, values, off)

    return warpers(
        rows,
        temperature=np.where(rng.random(rows) < 0.25, 0, rng.uniform(0.5, 2, rows)),
        top_k=sometimes(0, 2, vocab, whole=True),
        top_p=sometimes(1.0, 0.5, 1.0),
        min_p=sometimes(0.0, 0.0, 0.2),
        repetition_penalty=sometimes(1.0, 0.7, 1.5),
        presence_penalty=sometimes(0.0, -1.0, 1.0),
        frequency_penalty=sometimes(0.0, -0.3, 0.6),
        bias=[{int(rng.integers(vocab)): float(rng.normal()), int(rng.integers(vocab)): -np.inf} for _ in range(rows)],
        min_tokens=sometimes(0, 1, 20, whole=True),
    )


def same(got, wanted):
    return got.tokens == wanted.tokens and got.reasons == wanted.reasons


@pytest.mark.parametrize("source", ["lookup", "exit:1", "lm:d", "script"])
def test_every_source_and_lookahead_gives_the_plain_tokens_of_the_seed(source):
    engine = tiny_engine("coupled")
    for seed, lookahead in ((0, 1), (1, 2), (2, 4)):
        options = {"seed": seed, "warp": settings(), **LIMITS}
        wanted = plain(engine, PROMPTS, **options)
        drafts = scripted(engine, PROMPTS, wrong(wanted.tokens, 29, share=0.2))
        got = run(engine, PROMPTS, always(4, engine.source(source), lookahead), drafts, **options)
        assert same(got, wanted)
        accepted, proposed = (total(got, name, engine.source(source)) for name in ("accepted", "proposed"))
        assert 0 < accepted < proposed


@pytest.mark.parametrize("heat", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(2))
def test_switching_every_round_gives_the_plain_tokens_of_the_seed(seed, heat):
    engine = tiny_engine("coupled")
    options = {"seed": seed, "warp": settings(frequency_penalty=[0.0, 0.4, 0.2, -0.2]), **LIMITS}
    wanted = plain(engine, PROMPTS, **options)
    drafts = scripted(engine, PROMPTS, wrong(wanted.tokens, 29, share=0.3))
    plan = shuffled(4, [0, 1, 2, 3, 4], 4, seed, stride=1)
    sure = [0.0, 0.2, 0.5, 0.8]
    assert same(run(engine, PROMPTS, plan, drafts, draft_temperature=heat, draft_confidence=sure, **options), wanted)


@pytest.mark.parametrize("seed", range(4))
def test_every_warper_and_penalty_in_a_large_batch_gives_the_plain_tokens(seed):
    engine, prompts = table_engine("coupled"), table_prompts(seed)
    rng = np.random.default_rng(seed)
    options = {
        "warp": random_settings(seed),
        "seed": rng.integers(0, 2**32, TABLE_ROWS).tolist(),
        "max_new_tokens": rng.integers(1, 80, TABLE_ROWS).tolist(),
        "stop_ids": [[int(rng.integers(TABLE_VOCAB))] if rng.random() < 0.5 else [] for _ in prompts],
    }
    wanted = plain(engine, prompts, **options)
    drafts = scripted(engine, prompts, wrong(wanted.tokens, TABLE_VOCAB, share=0.2))
    drafting = {"draft_temperature": rng.uniform(0, 2, TABLE_ROWS).tolist()}
    got = run(engine, prompts, shuffled(TABLE_ROWS, [0, 1, 2, 3, 4], 5, seed, stride=1), drafts, **drafting, **options)
    assert same(got, wanted)
    assert set(wanted.reasons) == {"stop", "length"}


def test_rejection_does_depend_on_the_drafts_so_the_comparison_can_fail():
    options = {"seed": 0, "warp": settings(), **LIMITS}
    engine = tiny_engine("rejection")
    wanted = plain(engine, PROMPTS, **options)
    assert same(run(engine, PROMPTS, always(4, 0, 0), **options), wanted)
    got = run(engine, PROMPTS, always(4, engine.source("lm:d"), 4), **options)
    assert not same(got, wanted)
    assert got.tokens[1] == wanted.tokens[1], "the row at temperature 0 does not"


def permuted(plan, order):
    return Plan(*(leaf[np.asarray(order)] for leaf in plan))


@pytest.mark.parametrize("mode", ["coupled", "rejection"])
def test_slot_and_batch_mates_do_not_change_a_row(mode):
    engine, seeds = tiny_engine(mode), [5, 6, 7, 8]
    plan = shuffled(4, [0, 1, 2, 3], 4, 3)
    first = run(engine, PROMPTS, plan, seed=seeds, warp=settings(), **LIMITS)
    for order in ([2, 0, 3, 1], [3, 3, 3, 3]):

        def pick(values, order=order):
            return [values[row] for row in order]

        warp = warpers(4, **{name: pick(values) for name, values in SETTINGS.items()})
        limits = {"max_new_tokens": pick(LIMITS["max_new_tokens"])}
        again = run(engine, pick(PROMPTS), permuted(plan, order), seed=pick(seeds), warp=warp, **limits)
        assert again.tokens == pick(first.tokens)
        by_slot = run(engine, pick(PROMPTS), permuted(plan, order), seed=seeds, warp=warp, **limits)
        assert by_slot.tokens != pick(first.tokens), "noise that followed the slot would be noticed"


def test_a_row_in_a_batch_is_the_row_by_itself():
    """Beside rows that end with their first token, in the first slot."""
    engine, plan = tiny_engine("coupled"), shuffled(4, [0, 1, 2, 3], 4, 3)
    batch = run(engine, PROMPTS, plan, seed=40, warp=settings(), **LIMITS)
    for row in range(4):
        warp = warpers(4, **{name: values[row] for name, values in SETTINGS.items()})
        limits = [LIMITS["max_new_tokens"][row], 1, 1, 1]
        prompts, own = [PROMPTS[row], [0], [0], [0]], permuted(plan, [row, 0, 0, 0])
        alone = run(engine, prompts, own, seed=40 + row, warp=warp, max_new_tokens=limits)
        assert alone.tokens[0] == batch.tokens[row]
        assert alone.rounds == int(batch.state.counters.rounds[row].sum()), "nor does it take other rounds"


@pytest.mark.parametrize("mode", ["coupled", "rejection"])
@pytest.mark.parametrize("chunk", [1, 7])
def test_rounds_run_in_chunks_change_nothing(mode, chunk):
    engine, plan = tiny_engine(mode), shuffled(4, [0, 1, 2, 3], 4, 3)
    options = {"seed": 9, "warp": settings(), **LIMITS}
    whole = run(engine, PROMPTS, plan, **options)
    params, state = began(engine, PROMPTS, plan, **options)
    for _ in range(whole.rounds // chunk + 1):
        state, _ = decode.loop(engine.setup, params, state, chunk, np.zeros(4, bool))
    assert host(state).tokens == whole.tokens


def test_requests_without_a_seed_differ():
    engine = tiny_engine("coupled")
    outputs = {str(run(engine, PROMPTS, seed=None, warp=settings(), **LIMITS).tokens[0]) for _ in range(3)}
    assert len(outputs) == 3
    prompts = [PROMPTS[0]] * 4
    same_prompt = run(engine, prompts, seed=1, warp=warpers(4, temperature=1.5), max_new_tokens=30)
    assert len(set(map(str, same_prompt.tokens))) == 4, "rows of one seed are different samples"
