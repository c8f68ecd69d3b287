"""Where a row ends: stop ids, exact limits, and the room that buffers must have."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec import decode
from jaxspec.decode.request import needed_capacity, pad_prompts
from jaxspec.decode.state import init_state
from tests.decode import faulty
from tests.decode.engines import (
    FOREVER,
    Engine,
    host,
    plain,
    plain_setup,
    run,
    scripted,
    table_engine,
    tiny_engine,
)
from tests.decode.schedule import always, scheduled, script, shuffled
from tests.decode.test_greedy import PROMPTS, table_prompts, wrong
from tests.decode.tiny import TARGET, VOCAB, continued, model_of

LETTERS = faulty.PROMPTS


def ends_at_the_stop_id(fault):
    """Every token of the output in turn as stop id, in accepted runs of all lengths."""
    free = plain(faulty.ENGINE, LETTERS, max_new_tokens=24)
    drafts = scripted(faulty.ENGINE, LETTERS, free.tokens)
    inside = 0
    for at in range(12):
        stops = [[row[at]] for row in free.tokens]
        got = faulty.run_with(fault, always(8, 1, 3), drafts, max_new_tokens=24, stop_ids=stops)
        for row, output, reason in zip(free.tokens, got.tokens, got.reasons, strict=True):
            assert output == row[: row.index(row[at]) + 1], "ends at the first stop id, and keeps it"
            assert reason == "stop"
        last = got.state.counters.rounds.sum(1) - 1
        emitted, drafted = (entries[last, np.arange(8)] for entries in (got.log.emitted, got.log.count))
        inside += int((emitted <= drafted).sum())
    assert inside > 0, "some stop id stood before the end of an accepted run"


def test_a_stop_id_inside_an_accepted_run_ends_the_row_there():
    ends_at_the_stop_id(faulty.NONE)
    with pytest.raises(AssertionError, match="ends at the first stop id"):
        ends_at_the_stop_id(faulty.STOPS_LOOKED_FOR_LAST)


def stop_wins_over_length(fault):
    free = plain(faulty.ENGINE, LETTERS, max_new_tokens=24)
    drafts = scripted(faulty.ENGINE, LETTERS, free.tokens)
    firsts = [max(row.index(token) for token in set(row)) for row in free.tokens]  # a token's first time, late
    stops = [[row[at]] for row, at in zip(free.tokens, firsts, strict=True)]
    limits = [at + 1 for at in firsts]
    assert min(limits) > 1
    shorter = [limit - 1 for limit in limits]
    for lookahead in (0, 1, 3):
        for most, reason in ((limits, "stop"), (shorter, "length")):
            got = faulty.run_with(fault, always(8, 1, lookahead), drafts, max_new_tokens=most, stop_ids=stops)
            assert got.reasons == [reason] * 8
            assert [len(row) for row in got.tokens] == most


def test_stop_wins_over_length():
    stop_wins_over_length(faulty.NONE)
    with pytest.raises(AssertionError):
        stop_wins_over_length(faulty.LENGTH_WINS_OVER_STOP)


def lengths_are_exact(engine, prompts, plan, drafts=None, fault=faulty.NONE):
    for most in (1, 2, 3, 5, 17):
        limits = [most + row % 2 for row in range(len(prompts))]
        if engine is faulty.ENGINE:
            got = faulty.run_with(fault, plan, drafts, max_new_tokens=limits)
        else:
            got = run(engine, prompts, plan, drafts, max_new_tokens=limits)
        assert [len(row) for row in got.tokens] == limits
        assert got.reasons == ["length"] * len(prompts)
        left = np.asarray(limits)[None, :] - np.cumsum(got.log.emitted, 0) + got.log.emitted
        going = got.log.emitted > 0
        assert (got.log.count <= left - 1)[going].all(), "no draft is made that cannot be emitted"


@pytest.mark.parametrize("source", ["none", "lookup", "exit:1", "lm:d", "script"])
def test_max_new_tokens_is_exact_for_every_source(source):
    engine = tiny_engine("greedy")
    drafts = scripted(engine, PROMPTS, plain(engine, PROMPTS, max_new_tokens=20).tokens)
    lengths_are_exact(engine, PROMPTS, always(4, engine.source(source), 4), drafts)


def test_max_new_tokens_is_exact_for_every_row_of_a_large_batch():
    engine, prompts = table_engine("greedy"), table_prompts()
    lengths_are_exact(engine, prompts, shuffled(32, [0, 1, 2, 3], 5, 0))


def test_a_token_more_and_an_ended_row_that_goes_on_are_noticed():
    drafts = scripted(faulty.ENGINE, LETTERS, plain(faulty.ENGINE, LETTERS, max_new_tokens=20).tokens)
    drafts[::2] = -1  # so that rows end in different rounds
    lengths_are_exact(faulty.ENGINE, LETTERS, always(8, 1, 3), drafts)
    for fault in (faulty.ONE_TOKEN_MORE, faulty.ENDED_ROWS_GO_ON):
        with pytest.raises(AssertionError):
            lengths_are_exact(faulty.ENGINE, LETTERS, always(8, 1, 3), drafts, fault)


def test_a_source_that_drafts_too_much_cannot_lengthen_a_row():
    drafts = scripted(faulty.ENGINE, LETTERS, plain(faulty.ENGINE, LETTERS, max_new_tokens=20).tokens)
    lengths_are_exact(faulty.ENGINE, LETTERS, always(8, faulty.ENGINE.source("eager"), 3), drafts)


@functools.cache
def wide_engine():
    """A real cache and a window that is wide beside it."""
    model, params = model_of(dataclasses.replace(TARGET, num_layers=1), 0, 3.0)
    options = {"select": scheduled(7), "lookahead": 7, "windows": (1, 8), "vocab_size": VOCAB}
    setup = decode.make_setup(model, drafts=(script(7),), **options)
    return Engine(setup, plain_setup(model, VOCAB), decode.EngineParams(params, {}, ()), 64)


def rows_fill_their_buffers(slots, share):
    """Prompts and outputs of 24 tokens each in buffers of `slots`, through windows as wide as they go."""
    engine, prompts, limits = wide_engine(), [[1, 2, 3, 4], [5], [6, 7]], [20, 23, 22]
    request = decode.make_request(engine.setup, prompts, max_new_tokens=limits)
    state = init_state(engine.setup, jnp.asarray(pad_prompts(prompts, slots)), request, headroom=16)
    state = decode.prefill(engine.setup, engine.params, state, longest=4)
    wanted = continued(engine.setup.target, engine.params.target, prompts, 24)
    drafts = scripted(engine, prompts, wrong(wanted, VOCAB, share=share))[:, :slots]
    params = decode.EngineParams(engine.params.target, {"script": jnp.asarray(drafts)}, always(3, 1, 7))
    state, _ = decode.loop(engine.setup, params, state, FOREVER, np.zeros(3, bool))
    assert host(state).tokens == wanted


def test_a_row_may_fill_its_buffers_to_the_last_slot():
    needed = 24 + 8
    assert needed_capacity(wide_engine().setup, 4, 20, needed) == needed
    with pytest.raises(ValueError, match=r"needs a capacity of 32\b.*; it is 31"):
        needed_capacity(wide_engine().setup, 4, 20, needed - 1)
    for share in (0.0, 0.3, 1.0):
        rows_fill_their_buffers(needed, share)
    with pytest.raises(AssertionError):
        rows_fill_their_buffers(24, 1.0)  # writes are clamped, and land on tokens that were committed


def stops_drafting_at_64(source):
    engine = table_engine("greedy")
    chosen, prompts = engine.source(source), [[1], [2, 3], [4] * 40, [5] * 60] * 8
    wanted = plain(engine, prompts, max_new_tokens=80)
    got = run(engine, prompts, always(32, chosen, 5), max_new_tokens=80)
    assert got.tokens == wanted.tokens
    begin = np.asarray([len(p) for p in prompts])[None, :] + np.cumsum(got.log.emitted, 0) - got.log.emitted
    drafted = got.log.source == chosen
    ends = (begin + got.log.count)[drafted]
    assert (ends <= 64).all(), "drafts stand at positions below 64"
    assert (ends == 64).any(), "and reach the last"


def test_a_draft_that_ends_earlier_than_the_target_stops_drafting_in_time():
    stops_drafting_at_64("lm:short")
    with pytest.raises(AssertionError, match="drafts stand at positions below 64"):
        stops_drafting_at_64("lm:d")  # which has room to the end
