"""Rows of a batch are independent: none waits for another, and a finished one neither changes nor blocks."""

import jax
import numpy as np
import pytest

from jaxspec import decode
from tests.decode import faulty
from tests.decode.engines import TABLE_VOCAB, began, plain, run, scripted, tiny_engine
from tests.decode.schedule import always, shuffled
from tests.decode.test_greedy import LIMITS, PROMPTS, wrong

PER_ROUND = ("source", "count", "accepted", "emitted", "tokens")


def test_a_finished_row_keeps_its_tokens_cache_and_counters():
    engine, limits = tiny_engine("greedy"), {"max_new_tokens": [60, 3, 30, 11]}
    params, state = began(engine, PROMPTS, shuffled(4, [0, 1, 2, 3], 4, 0), **limits)
    wanted = plain(engine, PROMPTS, **limits).tokens
    frozen = {}

    def part(state, row):
        """Everything that is known of a row."""
        length, held = int(state.length[row]), int(state.cache.length[row])
        draft = state.sources[engine.source("lm:d")]
        own = int(draft.length[row])
        assert held == length - 1
        kept = [layer[row, :, :held] for layer in jax.tree.leaves(state.cache.layers)]
        kept += [layer[row, :, :own] for layer in jax.tree.leaves(draft.cache.layers)]
        counters = [leaf[row] for leaf in (state.counters.rounds, state.counters.accepted, state.counters.catch_up)]
        return [state.tokens[row, :length], length, own, state.logprobs[row, :length], *kept, *counters]

    while np.any(np.asarray(state.outcome) == 0):
        state, _ = decode.loop(engine.setup, params, state, 1, np.zeros(4, bool))
        seen = jax.tree.map(np.asarray, state)
        for row in np.flatnonzero(seen.outcome != 0):
            frozen.setdefault(int(row), part(seen, row))
            jax.tree.map(np.testing.assert_array_equal, part(seen, row), frozen[int(row)])
    assert [seen.tokens[row, len(p) : seen.length[row]].tolist() for row, p in enumerate(PROMPTS)] == wanted
    assert len({int(seen.counters.rounds[row].sum()) for row in range(4)}) == 4, "they ended at different times"


def rounds_do_not_depend_on_mates(fault):
    """Row 0 takes the same rounds beside rows that accept everything and beside rows that accept nothing."""
    free = plain(faulty.ENGINE, faulty.PROMPTS, max_new_tokens=24)
    logs = []
    for share in (0.0, 1.0):
        outputs = [free.tokens[0], *wrong(free.tokens[1:], TABLE_VOCAB, share=share)]
        drafts = scripted(faulty.ENGINE, faulty.PROMPTS, outputs)
        got = faulty.run_with(fault, always(8, 1, 3), drafts, max_new_tokens=24)
        assert got.tokens == free.tokens
        rounds = int(got.state.counters.rounds[0].sum())
        logs.append([rounds, *(getattr(got.log, name)[:rounds, 0].tolist() for name in PER_ROUND)])
    assert logs[0] == logs[1]


def test_nothing_advances_by_the_least_of_the_batch():
    rounds_do_not_depend_on_mates(faulty.NONE)
    with pytest.raises(AssertionError):
        rounds_do_not_depend_on_mates(faulty.LEAST_OF_THE_BATCH)


def test_a_row_halted_by_the_caller_keeps_what_it_has_and_the_others_go_on():
    engine = tiny_engine("greedy")
    whole = run(engine, PROMPTS, always(4, 3, 4), **LIMITS)
    params, state = began(engine, PROMPTS, always(4, 3, 4), **LIMITS)
    state, _ = decode.loop(engine.setup, params, state, 3, np.zeros(4, bool))
    before = np.asarray(state.length)
    state, seen = decode.loop(engine.setup, params, state, 1 << 20, np.array([True, False, False, False]))
    assert int(seen.length[0]) == before[0]
    result = decode.collect(seen, state.request, prefill_seconds=0.0, seconds=0.0)
    assert result.finish_reason == ["interrupted", "length", "length", "length"]
    assert result.tokens[1:] == whole.tokens[1:]
    assert result.tokens[0] == whole.tokens[0][: len(result.tokens[0])]
