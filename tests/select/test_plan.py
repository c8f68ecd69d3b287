"""The table of what a step may do, its best entry and the best tail, against brute force in numpy."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.contracts import Choice, Proposal
from jaxspec.select.plan import between, free_tokens, tail_of
from tests.select.force import Case, at
from tests.select.made import FREE_ALONE, KINDS, MOST, costs_of

NONE, LOOKUP, JACOBI, EXIT, LM = range(5)

CASES = {
    "three rows": {},
    "one row": {"rows": 1},
    "seven rows": {"rows": 7},
    "poor chances": {"scale": 0.5},
    "some that have ended": {"rows": 4, "active": [True, False, True, False]},
    "no sources that cost": {"kinds": FREE_ALONE},
    "weights": {"steering": {"weights": [1, 2.0, 0.3, 0, 1.5]}},
    "load": {"steering": {"load": [0.1, 0.6, 0.0]}},
    "a budget": {"steering": {"latency_budget": [9.0, 1.25, 2.0]}},
}


@pytest.mark.parametrize("name", CASES)
def test_the_table_and_its_best_entry_are_those_of_brute_force(name):
    chosen = set()
    for seed in range(12):
        case = Case(seed, **CASES[name])
        table, plan = case.table(), case.plan()
        force = list(case.entries())
        assert table.paid.tolist() == [each[0] for each in force]
        assert table.longest.tolist() == [each[1] for each in force]
        np.testing.assert_allclose(table.cost, [each[2] for each in force], rtol=1e-5)
        np.testing.assert_allclose(table.own, np.asarray([each[3] for each in force]).T, rtol=1e-5)
        rate, _, paid, longest, own = case.best()
        assert float(plan.rate[plan.entry]) == pytest.approx(rate, rel=1e-5)
        assert (int(table.paid[plan.entry]), int(table.longest[plan.entry])) == (paid, longest)
        for row in np.flatnonzero(case.active):
            tokens, source = case.best_free(row, longest)
            if own[row] > tokens:
                wanted = (paid, MOST if case.kinds.passes[paid] else longest)
            else:
                wanted = (source, longest if source else 0)
            assert (int(plan.source[row]), int(plan.lookahead[row])) == wanted
        chosen.add(paid)
    assert len(chosen) > 1 or name == "no sources that cost", "cases differ in what is best"


def test_expected_tokens_by_hand():
    case = Case(0, 1, offered=np.asarray([[0, 2, 0, 7, 7]]))
    case.chance[0, LOOKUP, :3] = [0.5, 0.4, 0.9]
    free = free_tokens(jnp.asarray(case.chance), case.signals, KINDS)
    np.testing.assert_allclose(free[0, LOOKUP], [1, 1.5, 1.7, 1.7, 1.7, 1.7, 1.7, 1.7], rtol=1e-6)
    np.testing.assert_allclose(free[0, [NONE, JACOBI, EXIT, LM]], 1)


def sure(chance, *, source=LOOKUP, rows=1, offered=MOST, **more):
    """Rows in which one source alone offers, with one chance at every depth."""
    table = np.zeros((rows, 5), int)
    table[:, source] = offered
    case = Case(0, rows, offered=table, **more)
    case.chance[:] = np.broadcast_to(np.asarray(chance, np.float32).reshape(-1, 1, 1), case.chance.shape)
    case.goes[:], case.lag[:] = 1, 0
    return case


def test_of_equals_the_narrowest_window_and_no_source_win():
    nothing = sure(0.0, costs=costs_of(width=0.0)).plan()  # all windows cost the same and nothing is gained
    assert (int(nothing.source[0]), int(nothing.lookahead[0]), int(nothing.entry)) == (0, 0, 0)
    one = sure(0.9, offered=1, costs=costs_of(width=0.0)).plan()  # one draft is all there is; wider is no dearer
    assert (int(one.source[0]), int(one.lookahead[0])) == (LOOKUP, 1)
    free = sure(0.9, costs=costs_of(width=0.0, draft=0.0))  # a model that costs nothing and offers what lookup does
    free.offered[:, LM] = MOST
    free_plan = free.plan()
    assert int(free_plan.source[0]) == LM, "its tails have brought something"


def test_two_sources_alike_are_the_first():
    case = Case(0, 2, FREE_ALONE, offered=np.asarray([[0, 7, 7]] * 2), costs=costs_of(kinds=FREE_ALONE))
    case.chance[:] = 0.8
    case.chance[1, 2, 0] = 0.81
    assert case.plan().source.tolist() == [1, 2]


def test_plain_decoding_wins_where_nothing_pays():
    dear = costs_of(width=0.3, draft=0.5, ride=5.0)
    plan = sure(0.25, costs=dear).plan()
    assert (int(plan.entry), int(plan.source[0])) == (0, 0)
    assert float(plan.rate[0]) == pytest.approx(1.0)
    assert int(sure(0.35, costs=dear).plan().lookahead[0]) == 1, "just above what the window costs"
    model = sure(0.2, source=LM, costs=dear).plan()
    assert int(model.source[0]) == 0


@pytest.mark.parametrize("chance", [0.3, 0.6, 0.9, 0.97])
def test_at_full_load_nothing_is_drafted_that_is_not_sure(chance):
    costs = costs_of(width=0.0, ride=5.0)
    assert int(sure(chance, costs=costs).plan().lookahead[0]) > 0, "alone, a window is free here"
    loaded = sure(chance, costs=costs, steering={"load": 1.0}).plan()
    assert (int(loaded.entry), int(loaded.lookahead[0])) == (0, 0)


def test_lookahead_falls_with_load_and_with_what_rows_make_of_a_window():
    def lookaheads(chance, many):
        return [int(each.plan().lookahead[0]) for each in (many(chance, value) for value in (0, 0.2, 0.5, 0.8, 1))]

    def by_load(chance, load):
        return sure(chance, costs=costs_of(width=0.03, ride=5.0), steering={"load": load})

    def by_rows(chance, share):
        return sure(chance, rows=8, costs=costs_of(width=share, ride=5.0))  # of a weight's time that a token costs

    for many in (by_load, by_rows):
        for chance in (0.6, 0.8, 0.9):
            falls = lookaheads(chance, many)
            assert falls == sorted(falls, reverse=True)
            assert falls[0] > falls[-1] == 0
        assert lookaheads(0.9, many)[1] >= lookaheads(0.6, many)[1], "what is surer goes on for longer"


def test_the_load_of_a_row_that_has_ended_counts_no_more():
    costs = costs_of(width=0.0, ride=5.0)
    ended = sure(0.6, rows=2, costs=costs, steering={"load": [0.0, 1.0]}, active=[True, False])
    assert int(ended.plan().lookahead[0]) > 0
    assert int(sure(0.6, rows=2, costs=costs, steering={"load": [0.0, 1.0]}).plan().lookahead[0]) == 0


@pytest.mark.parametrize("budget", [0.5, 1.0, 1.06, 1.2, 1.4, 2.0])
def test_no_row_takes_longer_than_the_shortest_budget(budget):
    for seed in range(10):
        case = Case(seed, costs=costs_of(width=0.05, draft=0.1), steering={"latency_budget": [5.0, budget, 5.0]})
        table, plan = case.table(), case.plan()
        plain = int(plan.entry) == 0
        assert plain or float(table.cost[plan.entry]) <= budget + 1e-6
        free = Case(seed, costs=case.costs)
        assert float(free.plan().rate.max()) >= float(plan.rate.max()) - 1e-6
    wide = sure(0.95, costs=costs_of(width=0.05), steering={"latency_budget": 1.16}).plan()
    assert int(wide.lookahead[0]) == 3, "a window of 4 costs 1.15, one of 8 costs 1.35"


def test_rows_share_the_window_but_not_the_source():
    case = Case(
        0, 2, FREE_ALONE, offered=np.asarray([[0, 7, 7], [0, 0, 0]]), costs=costs_of(kinds=FREE_ALONE, width=0.04)
    )
    case.chance[0] = 0.95
    plan = case.plan()
    assert plan.source.tolist() == [1, 0]
    assert plan.lookahead[1] == 0
    alone = Case(0, 1, FREE_ALONE, offered=case.offered[:1], costs=case.costs)
    alone.chance[:] = 0.95
    assert float(alone.plan().rate.max()) * 2 > float(plan.rate.max())


def test_what_is_banned_brings_nothing():
    for seed in range(8):
        weights = np.ones((3, 5))
        weights[:, 1:] = 0
        plan = Case(seed, steering={"weights": weights}).plan()
        assert plan.source.tolist() == [0, 0, 0]
        assert int(plan.entry) == 0


def test_between_two_entries_a_table_is_straight():
    table = jnp.asarray([1.0, 2.0, 4.0, 4.0])
    for place in (0.0, 0.25, 1.0, 1.5, 2.9, 3.0, 7.0):
        assert float(between(table, jnp.float32(place))) == pytest.approx(at(np.asarray(table), place))


def best_tail(costs, window, tokens, chance, source, count):
    """By force, of one row."""
    chain = np.cumprod(np.r_[1.0, chance[:count]])
    found = []
    for tail in range(tokens.shape[0]):
        for drafts in range(MOST + 1 - count):
            cost = window[count + drafts] + costs.draft[source, count]
            found.append(((chain.sum() + chain[-1] * (tokens[tail, drafts] - 1)) / cost, tail, drafts))
    rate = max(each[0] for each in found)
    return [each for each in found if each[0] >= rate * (1 - 1e-6)]


@pytest.mark.parametrize("load", [0.0, 0.4])
def test_the_tail_is_the_one_that_raises_tokens_per_time_most(load):
    lengths = set()
    for seed in range(20):
        case = Case(seed, 4, scale=0.9, steering={"load": load})
        rng = np.random.default_rng(100 + seed)
        source, count = rng.choice([EXIT, LM], 4), rng.integers(1, MOST + 1, 4)
        chance = rng.random((4, MOST)).astype(np.float32)
        tokens = np.asarray(free_tokens(jnp.asarray(case.chance), case.signals, KINDS))
        head = Proposal(
            jnp.zeros((4, MOST), jnp.int32), jnp.asarray(count, jnp.int32), None, jnp.zeros(4, bool),
            jnp.zeros(4, jnp.int32), jnp.ones((4, MOST)),
        )  # fmt: skip
        choice = Choice(jnp.asarray(source, jnp.int32), jnp.asarray(count, jnp.int32))
        tail, drafts = tail_of(case.costs, case.signals, jnp.asarray(tokens), jnp.asarray(chance), choice, head, KINDS)
        for row in range(4):
            force = best_tail(case.costs, case.window(), tokens[row], chance[row], source[row], count[row])
            assert int(drafts[row]) in {each[2] for each in force}
            assert int(tail[row]) in ({each[1] for each in force} if int(drafts[row]) else {0})
            assert count[row] + int(drafts[row]) <= MOST
            lengths.add(int(drafts[row]))
    assert {0, 1} < lengths
