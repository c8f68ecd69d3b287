"""Goodput finds what pays, leaves what does not, and begins where an earlier run has ended; played on made-up texts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.bench import processes
from jaxspec.bench.oracle import always, best_fixed
from jaxspec.bench.prices import Prices, curve_prices
from jaxspec.bench.replay import replay
from jaxspec.bench.shifts import recovery, splice
from jaxspec.contracts import MODEL, Seen
from jaxspec.select import Kinds, Prior, SelectorParams, goodput, no_prior
from jaxspec.select.cost import CostTable
from jaxspec.select.logistic import no_lean
from tests.bench.made import DEPTH, made
from tests.select.made import signals_of

NONE, LOOKUP, LM = range(3)
TOKENS = 1500
PRICES = curve_prices("flat", processes.POOL, 8, 0.1)
SEEN = Seen(jnp.full(1, 0.7), jnp.full(1, 0.4), jnp.full(1, 1.0), jnp.full(1, -1))


def kinds_for(pool, depth) -> Kinds:
    passes = tuple(cost == MODEL for cost in pool.costs)
    return Kinds(pool.names, passes, pool.carrier or 0, pool.nodes, tuple(range(1, depth + 2)))


@functools.cache
def stubborn(kinds):
    """It learns nothing."""
    return goodput(kinds)._replace(name="stubborn", update=lambda params, state, *seen: state)


def played(record, prices=PRICES, *, selector=goodput, state=None, prior=None):
    """On a text that might go on, so that no row is near its end."""
    record = dataclasses.replace(record, limit=2 * len(record))
    kinds = kinds_for(record.pool, record.depth)
    costs = (prices.verify, prices.draft, prices.lag, prices.ride)
    cost = CostTable(*(jnp.asarray(each, jnp.float32) for each in costs))
    params = SelectorParams(cost, no_prior(kinds) if prior is None else prior)
    return replay(selector(kinds), params, [record], prices, state=state)


@pytest.mark.parametrize(("chances", "best"), [((1.0, 0.0), LOOKUP), ((0.0, 1.0), LM)])
def test_the_source_that_is_right_is_taken_within_tens_of_rounds(chances, best):
    series = played(processes.stationary(TOKENS, chances).record).text(0)
    assert (series.source[20:] == best).all()
    assert (series.lookahead[20:] == 8).all(), "and trusted to the end"
    assert len(series.source) < TOKENS / 8
    unlearnt = played(processes.stationary(TOKENS, chances).record, selector=stubborn).text(0)
    assert unlearnt.lookahead.max() < 8


@pytest.mark.parametrize("chances", [(0.3, 0.8), (0.8, 0.3), (0.5, 0.5), (0.9, 0.95)])
def test_it_comes_near_the_best_fixed_choice(chances):
    record = processes.stationary(TOKENS, chances, seed=1).record
    whole = dataclasses.replace(record, limit=2 * len(record))
    _, best = best_fixed([whole], PRICES)
    assert played(record).rate > 0.96 * best.rate
    if chances != (0.5, 0.5):  # what it believes in the beginning
        assert played(record, selector=stubborn).rate < 0.96 * best.rate


def test_where_nothing_is_ever_right_it_decodes_plainly_and_tries_again_ever_less():
    record = processes.useless(TOKENS).record
    got = played(record)
    drafting = got.text(0).source > 0
    assert drafting[:20].mean() > 0.5, "in the beginning everything is worth a try"
    assert drafting[300:].mean() <= 0.02
    assert drafting[300:900].sum() >= drafting[900:].sum()
    assert got.rate > 0.98
    assert played(record, selector=stubborn).rate < 0.9


def test_a_source_that_turns_bad_is_left_and_one_that_turns_good_is_found():
    parts = [processes.stationary(TOKENS // 2, c, seed=n).record for n, c in enumerate(((0.0, 0.95), (0.95, 0.0)))]
    parts = [dataclasses.replace(part, category=name) for part, name in zip(parts, "ab", strict=True)]
    for order, names in ((("a", "b"), (LM, LOOKUP)), (("b", "a"), (LOOKUP, LM))):
        whole, starts = splice(parts, list(order))
        series = played(whole).text(0)
        for start, name in zip(starts, names, strict=True):
            here = (series.position >= start) & (series.position < start + TOKENS // 2)
            turns = series.source[here]
            assert (turns[70:] == name).mean() > 0.95
        _, best = best_fixed([parts["ab".index(order[1])]], PRICES)
        later = series.position >= starts[1]
        rest = type(series)(*(leaf[later] for leaf in series))._replace(position=series.position[later] - starts[1])
        found = recovery(rest, best.text(0))
        assert found is not None
        assert found <= 64


def without(record, *sources):
    """The record without any draft of these sources."""
    offered = record.offered.copy()
    offered[:, list(sources)] = 0
    return dataclasses.replace(record, offered=offered, right=np.minimum(record.right, offered))


RIDE = Prices(
    verify=(1 + 0.03 * np.arange(DEPTH + 1)).astype(np.float32),
    draft=(np.asarray([0, 0, 0, 0.5])[:, None] * np.arange(DEPTH + 1)).astype(np.float32),
    lag=np.zeros(4, np.float32),
    ride=np.float32(0.25),
)


def rides(played_):
    """Whether the branch was in the window, round by round."""
    series = played_.text(0)
    return series.cost - RIDE.verify[series.lookahead] - RIDE.draft[series.source, series.lookahead] > 0.2


def test_a_branch_that_rides_in_vain_is_asked_for_no_more():
    record = without(made(1, TOKENS, good=0.2).record, 1, 2)
    got = played(record, RIDE)
    rode = rides(got)
    assert rode[:10].mean() > 0.5, "it has nothing yet, and is worth a try"
    assert rode[200:].mean() < 0.02
    assert got.rate > 0.98
    assert rides(played(record, RIDE, selector=stubborn))[200:].mean() > 0.9


def test_a_branch_is_asked_for_though_no_source_offers_anything():
    record = without(made(1, TOKENS, good=0.2).record, 1, 2, 3)
    assert rides(played(record, RIDE))[:10].mean() > 0.5


def test_a_branch_that_brings_something_goes_on_riding():
    record = without(made(2, TOKENS, good=0.9).record, 1)
    assert rides(played(record, RIDE))[100:].mean() > 0.5


def grown(kinds, state) -> Prior:
    """What a run has learnt of all rows, as the next call gets it."""
    return goodput(kinds).carry((), state)


def test_a_prior_is_where_an_earlier_run_has_ended():
    process = processes.stationary(TOKENS, (0.35, 0.75), seed=3)
    kinds = kinds_for(processes.POOL, 8)
    first = played(process.record)
    rows_own = (no_lean(1, 3), no_lean(1, 3), no_lean(1, 3))
    state = first.state._replace(leans=rows_own, tails=jax.tree.map(jnp.zeros_like, first.state.tails))
    prior = grown(kinds, first.state)
    selector = goodput(kinds)
    fresh = selector.init(1, 3)
    costs = (PRICES.verify, PRICES.draft, PRICES.lag, PRICES.ride)
    cost = CostTable(*(jnp.asarray(each, jnp.float32) for each in costs))
    rng = np.random.default_rng(0)
    differs = 0
    for _ in range(20):
        offered = rng.integers(0, 9, (1, 3)) * np.asarray([[0, 1, 1]])
        signals = signals_of(offered, match=np.minimum(offered, rng.integers(0, 9)) * [[0, 1, 0]], seen=SEEN)
        went_on = selector.choose(SelectorParams(cost, no_prior(kinds)), state, signals)
        began = selector.choose(SelectorParams(cost, prior), fresh, signals)
        naive = selector.choose(SelectorParams(cost, no_prior(kinds)), fresh, signals)
        assert (int(went_on.source[0]), int(went_on.lookahead[0])) == (int(began.source[0]), int(began.lookahead[0]))
        for name, value in went_on.told.items():
            np.testing.assert_allclose(value, began.told[name], rtol=1e-4, atol=1e-5)
        for mine, other in zip(went_on.stop, began.stop, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)
        differs += int(naive.lookahead[0]) != int(began.lookahead[0])
    assert differs >= 3, "somebody who knows nothing chooses otherwise"


def test_a_prior_saves_what_the_beginning_cost():
    process = processes.useless(TOKENS)
    first = played(process.record)
    later = played(process.record, prior=grown(kinds_for(processes.POOL, 8), first.state))
    drafted = [int((each.text(0).source > 0).sum()) for each in (first, later)]
    assert drafted[1] < 0.7 * drafted[0]
    assert later.rate > first.rate
    assert always([process.record], PRICES, 0, 0).rate == pytest.approx(1.0)


def test_a_choice_says_what_was_expected():
    kinds = kinds_for(processes.POOL, 8)
    choice = goodput(kinds).choose((), goodput(kinds).init(1, 3), signals_of([[0, 8, 8]], seen=SEEN))
    assert set(choice.told) >= {"expected tokens", "drafts drawn"}
    assert np.all(np.asarray(choice.told["expected tokens"]) >= 1)
    assert (np.asarray(choice.stop.step) > 0).all()
