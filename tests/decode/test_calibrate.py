"""With a clock that goes by a known table, calibration gives that table back, and compiles nothing of its own."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from jaxspec import decode, telemetry
from jaxspec.costs import guessed
from jaxspec.decode import calibrate as module
from jaxspec.decode.calibrate import BESIDE, Entry, NoRoom, Seconds, calibrate, entries, prompt_length, table_of, turns
from jaxspec.select import SelectorParams, kinds_of, no_prior
from tests.decode import tiny

pytestmark = pytest.mark.heavy

ROWS, CAPACITY, LOOKAHEAD = 2, 128, 3
PROMPT = list(range(1, 20))

VERIFY = [1.0, 1.75]
DRAFT = {"exit:1": [0.0, 0.25, 0.5, 0.875], "lm:d": [0.0, 0.5, 0.75, 1.5]}
LAG, RIDE = 0.125, 0.375


@functools.cache
def engine() -> tuple[decode.Setup, decode.EngineParams]:
    model, params = tiny.model_of(tiny.TARGET, 0, 1.6)
    draft, draft_params = tiny.model_of(tiny.DRAFT, 1, 0.5)
    setup = decode.make_setup(
        model,
        drafts=("lookup", "jacobi:2:3:2", "exit:1", ("lm:d", draft)),
        select="goodput",
        lookahead=LOOKAHEAD,
        vocab_size=tiny.VOCAB,
    )
    given = SelectorParams(guessed(setup), no_prior(kinds_of(setup.sources, setup.windows)))
    return setup, decode.EngineParams(params, {"lm:d": draft_params}, given)


def calibrated(**options):
    setup, params = engine()
    return calibrate(
        setup, params, rows=ROWS, capacity=CAPACITY, dtype=np.float32, prompt_ids=PROMPT, repeats=2, **options
    )


@pytest.fixture
def clock(monkeypatch):
    """The rounds run; the seconds are those of the table above for what they did."""
    real = module.timed

    def timed(setup, params, state, rounds):
        before = jax.tree.map(np.array, state.counters)
        missed = int(state.request.prompt_length[0]) - 1 if int(state.rounds) == 0 else 0
        pinned = setup.names[int(state.request.steering.pinned[0])]
        state, seen, _ = real(setup, params, state, rounds)
        done = jax.tree.map(lambda new, old: np.asarray(new) - old, seen.counters, before)
        seconds = float(done.widths @ VERIFY)
        for name, table in DRAFT.items():
            seconds += float(done.proposed[0, setup.names.index(name)] @ np.diff(table))
        seconds += LAG * missed if pinned == "lm:d" else 0.0
        seconds += RIDE * done.widths.sum() if pinned.startswith("jacobi") else 0.0
        return state, seen, seconds

    monkeypatch.setattr(module, "timed", timed)


def test_the_table_that_the_clock_goes_by_comes_back(clock):
    setup, table = engine()[0], calibrated()
    np.testing.assert_allclose(table.verify, VERIFY, rtol=1e-6)
    for index, name in enumerate(setup.names):
        np.testing.assert_allclose(table.draft[index], DRAFT.get(name, [0.0] * 4), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(table.lag[index], LAG if name == "lm:d" else 0.0, rtol=1e-5)
    np.testing.assert_allclose(table.ride, RIDE, rtol=1e-5)
    assert all(leaf.dtype == np.float32 for leaf in table)


def test_nothing_but_the_loop_and_a_prefill_is_compiled():
    setup, params = engine()
    prompts = [PROMPT * 2 + [1]] * ROWS  # as many tokens as calibration takes: a third of the capacity's
    request = {"max_new_tokens": 4, "seed": 0, "capacity": CAPACITY, "dtype": np.float32}
    decode.generate(setup, params, prompts, **request)
    before = telemetry.compilations()
    calibrated()
    assert telemetry.compilations() == before


def test_another_table_changes_neither_tokens_nor_programs():
    setup, params = engine()
    prompts = [[5, 6, 7, 5, 6], [1, 2]]
    request = {"max_new_tokens": 40, "seed": 0, "capacity": CAPACITY, "dtype": np.float32}
    rough = decode.generate(setup, params, prompts, **request)
    dear = params.selector.cost._replace(verify=np.asarray([1.0, 9.0], np.float32))
    other = dataclasses.replace(params, selector=params.selector._replace(cost=dear))
    before = telemetry.compilations()
    changed = decode.generate(setup, other, prompts, **request)
    assert telemetry.compilations() == before
    assert changed.tokens == rough.tokens
    assert changed.rounds > rough.rounds, "where windows are dear, less is drafted"


def test_every_kind_of_round_is_timed_as_often_and_in_another_order_each_time():
    setup = engine()[0]
    kinds = entries(setup)
    assert [entry.width for entry in kinds if entry.what == "verify"] == list(setup.windows)
    assert {(setup.names[e.source], e.drafts) for e in kinds if e.what == "draft"} == {
        (name, k) for name in DRAFT for k in (1, 2, 3)
    }
    assert [setup.names[e.source] for e in kinds if e.what == "ride"] == ["jacobi:2:3:2"]
    assert {e.width for e in kinds if e.what != "verify"} == {setup.windows[-1]}
    order = turns(kinds, 3)
    assert all(order.count(entry) == 3 for entry in kinds)
    assert len({order[i * len(kinds)] for i in range(3)}) == 3


@pytest.mark.parametrize(
    ("rows", "room", "tokens"), [(1, 500, 64), (4, 500, 64), (16, 500, 16), (64, 500, 8), (1, 30, 10), (64, 1, 1)]
)
def test_many_rows_have_short_prompts(rows, room, tokens):
    """Else most of the time for measuring rounds went into prefills."""
    assert prompt_length(rows, room) == tokens


def test_time_that_is_up_ends_it_once_all_was_measured(clock):
    seen, notes = [], []
    table = calibrated(limit=0.0, told=lambda *done: seen.append(done), note=notes.append)
    kinds = len(entries(engine()[0]))
    assert seen == [(done + 1, 2 * kinds) for done in range(kinds)]
    assert notes == [f"calibration stopped after 0 s, with {kinds} of {2 * kinds} measurements; costs are rougher"]
    np.testing.assert_allclose(table.verify, VERIFY, rtol=1e-6)


def test_slow_rounds_are_timed_in_shorter_measurements(clock, monkeypatch):
    asked, timed = [], module.timed
    monkeypatch.setattr(module, "timed", lambda *args: asked.append(args[3]) or timed(*args))
    kinds = len(entries(engine()[0]))
    calibrated(limit=2 * kinds * (BESIDE + 2) * (VERIFY[-1] + RIDE), rounds=8)
    assert max(asked) == 2


def test_costs_do_not_fall():
    """More drafts cost no less than fewer, a wider window no less than a narrower one, nothing less than 0."""
    setup = engine()[0]
    found = {entry: Seconds([1.0], [1.0]) for entry in entries(setup)}
    lm = setup.names.index("lm:d")
    found[Entry("verify", 0, 0, 4)] = Seconds([0.5] * 3, [0.5] * 3)  # less than the narrow one
    found[entries(setup)[-1]] = Seconds([0.4], [0.4])  # the branch rides for less than nothing
    found[Entry("draft", lm, 2, 4)] = Seconds([4.0, 1.0, 2.0], [2.0, 5.0, 4.0])
    table = table_of(setup, found, missed=10)
    assert table.verify.tolist() == [1.0, 1.0]
    assert table.draft[lm].tolist() == [0.0, 0.0, 3.0, 3.0]
    assert float(table.lag[lm]) == 0.0
    assert float(table.ride) == 0.0


def test_beyond_the_most_that_a_source_drafts_it_costs_what_that_costs():
    setup = engine()[0]
    lm = setup.names.index("lm:d")
    heads = (*setup.sources[:lm], setup.sources[lm]._replace(most=2))
    setup = dataclasses.replace(setup, sources=heads)
    mine = [entry for entry in entries(setup) if entry.source == lm]
    assert [entry.drafts for entry in mine] == [1, 2]
    found = {entry: Seconds([1.0], [1.0]) for entry in entries(setup)}
    found |= {entry: Seconds([1.0], [1.0 + entry.drafts]) for entry in mine}
    assert table_of(setup, found, missed=1).draft[lm].tolist() == [0.0, 1.0, 2.0, 2.0]


def test_rows_that_are_too_short_are_refused():
    setup, params = engine()
    with pytest.raises(NoRoom, match=r"a capacity of 16 tokens.* leaves no room to time rounds of 4"):
        calibrate(setup, params, rows=1, capacity=16, dtype=np.float32, prompt_ids=PROMPT)
