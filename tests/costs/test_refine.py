"""Costs move to what rounds take, each as far as it was used; rounds and seconds are simulated by a known table."""

import numpy as np
import pytest

from jaxspec.costs import Refiner, refine
from jaxspec.costs.refine import ENOUGH, STEP, said, used
from jaxspec.select import Kinds
from jaxspec.select.cost import CostTable
from jaxspec.telemetry import Counters

KINDS = Kinds(("none", "lookup", "jacobi", "exit", "lm"), (False, False, False, True, True), 2, 3, (1, 4, 8))
A, N = KINDS.lookahead, len(KINDS.names)


def table_of(scale=1.0, step=0.004, lag=0.0005, ride=0.005) -> CostTable:
    draft = np.zeros((N, A + 1), np.float32)
    draft[3:] = step * np.arange(A + 1)
    leaves = (scale * np.asarray([0.03, 0.044, 0.046]), draft, np.asarray([0, 0, 0, 0, lag]), np.asarray(ride))
    return CostTable(*(np.asarray(leaf, np.float32) for leaf in leaves))


def nothing(rows=1) -> Counters:
    shapes = ((rows, N), (rows, N), (rows, N, A), (rows, N, A), (rows, N), (3,))
    return Counters(*(np.zeros(shape, np.int32) for shape in shapes))


def chunk(rounds: list[tuple[int, int]], *, caught: int = 0, rows: int = 1) -> Counters:
    """Counters of rounds (source, drafts), all rows alike."""
    counters = nothing(rows)
    for source, drafts in rounds:
        counters.rounds[:, source] += 1
        counters.proposed[:, source, :drafts] += 1
        counters.widths[np.searchsorted(KINDS.windows, drafts + 1)] += 1
    counters.catch_up[:, 4] += caught
    return counters


def random_chunk(rng: np.random.Generator) -> Counters:
    """Rounds of one kind, as where one choice is the best for a while; a draft that was idle catches up at times."""
    source, drafts = ((0, 0), (1, 3), (1, 7), (2, 7), (3, 3), (4, 7))[rng.integers(6)]
    return chunk([(source, drafts)] * 8, caught=int(rng.choice([0, 0, 400])) if source == 4 else 0)


def followed(start: CostTable, truth: CostTable, chunks: int, step: float) -> CostTable:
    rng = np.random.default_rng(0)
    for _ in range(chunks):
        after = random_chunk(rng)
        seconds = said(truth, used(KINDS, nothing(), after))
        start = refine(start, KINDS, nothing(), after, seconds, step=step)
    return start


def distance(table: CostTable, truth: CostTable) -> float:
    """Worst error of what 50 chunks take."""
    rng, worst = np.random.default_rng(1), 0.0
    for _ in range(50):
        use = used(KINDS, nothing(), random_chunk(rng))
        worst = max(worst, abs(said(table, use) / said(truth, use) - 1))
    return worst


TRUTH = table_of(1.3, step=0.009, lag=0.001, ride=0.002)


def test_it_converges_to_the_true_table():
    """Faster than in use, where clocks are not exact."""
    assert distance(table_of(), TRUTH) > 0.4
    found = followed(table_of(), TRUTH, 2000, 0.3)
    assert distance(found, TRUTH) < 0.03
    np.testing.assert_allclose(found.verify, TRUTH.verify, rtol=0.05)
    np.testing.assert_allclose([found.draft[3][3], found.draft[4][7]], [0.027, 0.063], rtol=0.05)
    np.testing.assert_allclose(found.lag[4], TRUTH.lag[4], rtol=0.1)


def test_a_few_hundred_chunks_help_at_the_pace_of_use():
    assert distance(followed(table_of(), TRUTH, 300, STEP), TRUTH) < 0.5 * distance(table_of(), TRUTH)


def test_with_the_sign_flipped_it_diverges():
    assert distance(followed(table_of(), TRUTH, 300, -0.05), TRUTH) > distance(table_of(), TRUTH)


def test_a_table_that_is_right_stays():
    found = followed(TRUTH, TRUTH, 50, 0.05)
    for mine, theirs in zip(found, TRUTH, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def test_what_was_not_used_stays():
    after = chunk([(0, 0)] * 3 + [(4, 2)] * 5)
    start = table_of()
    found = refine(start, KINDS, nothing(), after, 2 * said(start, used(KINDS, nothing(), after)))
    assert found.verify[0] > start.verify[0]
    assert found.verify[1] > start.verify[1]
    assert found.verify[2] == start.verify[2]
    moved = np.argwhere(np.asarray(found.draft) != start.draft)
    assert moved.tolist() == [[4, 2]]
    assert found.lag.tolist() == start.lag.tolist()
    assert float(found.ride) == float(start.ride)


def test_a_free_source_costs_nothing_whatever_its_rounds_take():
    after = chunk([(1, 7)] * 8)
    assert not np.any(refine(table_of(), KINDS, nothing(), after, 9.0).draft[1])


def test_nothing_is_learnt_of_no_rounds_and_little_of_a_wild_one():
    start = table_of()
    assert refine(start, KINDS, nothing(), nothing(), 5.0) is start
    after = chunk([(0, 0)] * 8)
    found = refine(start, KINDS, nothing(), after, 1e6)
    np.testing.assert_allclose(found.verify[0], start.verify[0] * (1 + 0.05 * 2), rtol=1e-5)


def test_costs_never_fall_below_0():
    table, after = table_of(), chunk([(4, 3)] * 8)
    for _ in range(500):
        table = refine(table, KINDS, nothing(), after, 0.0, step=1.5)
    assert all(np.all(np.asarray(leaf) >= 0) for leaf in table)


def test_rows_share_their_rounds():
    one, many = (used(KINDS, nothing(rows), chunk([(4, 3)] * 8, caught=5, rows=rows)) for rows in (1, 16))
    for mine, theirs in zip(one, many, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert one.draft[4].tolist() == [0, 0, 0, 8, 0, 0, 0, 0]
    assert one.lag[4] == 5


def test_what_passed_before_does_not_count():
    first, then = chunk([(4, 3)] * 8, caught=5), chunk([(0, 0)] * 2)
    both = Counters(*(a + b for a, b in zip(vars(first).values(), vars(then).values(), strict=True)))
    for mine, theirs in zip(used(KINDS, first, both), used(KINDS, nothing(), then), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(("times", "off"), [(1.0, False), (1.4, False), (1.6, True), (0.5, True)])
def test_a_call_far_from_its_table_is_told_of(times, off):
    refiner = Refiner(table_of(), KINDS)
    for _ in range(ENOUGH // 8):
        assert refiner.off is None
        after = chunk([(4, 3)] * 8)
        refiner.take(nothing(), after, times * said(table_of(), used(KINDS, nothing(), after)))
    assert (refiner.off is not None) == off
    assert not off or refiner.off == pytest.approx(times, rel=1e-5)
    assert refiner.changed == (times != 1.0)
