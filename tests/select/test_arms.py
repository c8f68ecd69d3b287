"""Arms are the choices there are; a step runs one shared source, the one that its rows gain most by."""

import dataclasses
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxspec.bench import shifts
from jaxspec.bench.replay import replay
from jaxspec.contracts import Choice
from jaxspec.select import Kinds, SelectorParams, learned, no_prior, prior_of
from jaxspec.select import arms as arms_
from jaxspec.select.cost import guess
from jaxspec.select.learned import BANDITS, LEARNED
from tests.select import texts
from tests.select.made import FREE_ALONE, KINDS, costs_of, signals_of

ARMS = arms_.arms_of(KINDS)
SOURCE, LOOKAHEAD = np.asarray(ARMS.source), np.asarray(ARMS.lookahead)
SHARED = (2, 3, 4)  # jacobi rides, exit and lm cost a pass


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (1, [1]),
        (2, [1, 2]),
        (4, [1, 2, 3, 4]),
        (7, [1, 2, 3, 5, 7]),
        (8, [1, 2, 3, 5, 8]),
        (16, [1, 2, 3, 5, 7, 11, 16]),
    ],
)
def test_every_source_has_a_few_lookaheads_up_to_the_most(most, expected):
    arms = arms_.arms_of(Kinds(("none", "a", "b"), (False, False, True), 0, 0, (1, most + 1)))
    listed = list(zip(arms.source, arms.lookahead, arms.below, strict=True))
    below = [0, *expected[:-1]]
    assert listed == [(0, 0, -1), *((n, k, b) for n in (1, 2) for k, b in zip(expected, below, strict=True))]
    assert arms_.arms_of(Kinds(("none", "a"), (False, False), 0, 0, (1,))).source == (0,)


def time_by_hand(costs, source, lookahead, *, lag=0, load=0.0):
    """Of one round on a device with window widths 1, 2, 4, 8."""
    z = next(z for z, width in enumerate(KINDS.windows) if width > lookahead)
    plain, verify = float(costs.verify[0]), float(costs.verify[z])
    time = (1 - load) * verify + load * max(verify, plain * KINDS.windows[z]) + float(costs.draft[source, lookahead])
    time += float(costs.lag[source]) * lag if lookahead else 0
    return time + (float(costs.ride) if source == 2 else 0)


@pytest.mark.parametrize("load", [0.0, 0.7])
def test_times_are_those_of_the_table(load):
    costs = costs_of(seed=3, lag=0.02)
    lag = np.asarray([[0, 0, 0, 4, 9], [0, 0, 0, 30, 5]])
    active = np.asarray([True, False])
    signals = signals_of(np.full((2, 5), 7), lag=lag, active=active, steering={"load": load})
    got = arms_.times_of(ARMS, costs, signals)
    expected = [time_by_hand(costs, n, k, lag=lag[0, n], load=load) for n, k in zip(SOURCE, LOOKAHEAD, strict=True)]
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    both = arms_.times_of(ARMS, costs, signals._replace(active=jnp.ones(2, bool)))
    assert np.all(np.asarray(both)[SOURCE == 3] > np.asarray(got)[SOURCE == 3])  # the other row lags more


def test_no_reward_is_above_one_and_the_best_is_one():
    costs = costs_of(seed=5)
    signals = signals_of(np.full((len(ARMS), 5), 7))
    choice = Choice(jnp.asarray(SOURCE, jnp.int32), jnp.asarray(LOOKAHEAD, jnp.int32))
    arm = jnp.arange(len(ARMS), dtype=jnp.int32)
    full = arms_.rewards(ARMS, costs, signals, choice, arm, jnp.asarray(LOOKAHEAD + 1, jnp.int32))
    assert float(jnp.max(full)) == pytest.approx(1, abs=1e-6)
    rates = [(k + 1) / time_by_hand(costs, n, k) for n, k in zip(SOURCE, LOOKAHEAD, strict=True)]
    np.testing.assert_allclose(full, np.asarray(rates) / max(rates), rtol=1e-5)
    nothing = arms_.rewards(ARMS, costs, signals, choice, arm, jnp.zeros(len(ARMS), jnp.int32))
    assert not np.any(np.asarray(nothing))


def there(offered, **more):
    signals = signals_of(offered, **more)
    return np.asarray(arms_.at_hand(ARMS, signals, arms_.times_of(ARMS, costs_of(), signals)))


def test_arms_at_hand_are_those_that_an_offer_reaches():
    offered = np.asarray([[0, 4, 0, 7, 0], [0, 0, 2, 1, 7]])
    got = there(offered)
    for row, arm in itertools.product(range(2), range(len(ARMS))):
        source, lookahead = SOURCE[arm], LOOKAHEAD[arm]
        drafts = offered[row, source]
        steps = [k for k in (1, 2, 3, 5, 7) if k >= drafts]
        expected = arm == 0 or (drafts > 0 and lookahead <= steps[0])
        if (source, lookahead) == (2, 1):  # asked, it learns
            expected = True
        assert got[row, arm] == expected, (row, source, lookahead)


def test_a_ban_and_a_budget_take_arms_away_but_plain_decoding_never():
    weights = np.ones((1, 5))
    weights[0, 2] = 0
    banned = there([[0, 7, 0, 7, 7]], steering={"weights": weights})
    assert not banned[0, SOURCE == 2].any()
    assert banned[0, SOURCE == 1].all()
    costs = costs_of()
    budget = 1.4
    within = there([[0, 7, 7, 7, 7]], steering={"latency_budget": budget})
    expected = [time_by_hand(costs, n, k) <= budget for n, k in zip(SOURCE, LOOKAHEAD, strict=True)]
    np.testing.assert_array_equal(within[0], expected)
    assert 1 < within.sum() < len(ARMS)
    assert there([[0, 7, 7, 7, 7]], steering={"latency_budget": 0.0})[0].tolist() == [True] + [False] * (len(ARMS) - 1)


def pick_by_force(score, at_hand, active):
    """Of no shared source and each of them, the one with the largest sum over active rows; the first of equals."""
    best, found = -np.inf, None
    for shared in (0, *(KINDS.models), KINDS.carrier):
        kept = ~np.isin(SOURCE, SHARED) | (shared == SOURCE)
        each = np.where(at_hand & kept[None], score, -np.inf)
        total = each.max(1)[active].sum()
        if total > best + 1e-9:
            best, found = total, each.argmax(1)
    return found


def test_a_step_runs_the_shared_source_that_its_rows_gain_most_by():
    rng = np.random.default_rng(0)
    several = 0
    for _ in range(100):
        score = rng.random((3, len(ARMS))).astype(np.float32)
        at_hand = rng.random((3, len(ARMS))) < 0.6
        at_hand[:, 0] = True
        active = np.asarray([True, True, rng.random() < 0.5])
        got = np.asarray(arms_.picked(ARMS, jnp.asarray(score), jnp.asarray(at_hand), jnp.asarray(active)))
        np.testing.assert_array_equal(got[active], pick_by_force(score, at_hand, active)[active])
        assert len(set(SOURCE[got]) & set(SHARED)) <= 1
        each = SOURCE[np.where(at_hand, score, -1).argmax(1)]
        several += len(set(each) & set(SHARED)) > 1
    assert several > 10  # negative control: rows alone would have run several


def random_law(rng, rows):
    law = rng.random((rows, len(ARMS))) * (rng.random((rows, len(ARMS))) < 0.7)
    law[:, 0] += 0.1
    return (law / law.sum(1, keepdims=True)).astype(np.float32)


def test_draws_have_the_chances_that_are_said_and_share_their_source():
    law = random_law(np.random.default_rng(1), 3)
    law[2, np.isin(SOURCE, SHARED)] = 0  # a row that no shared source has anything for
    law[2] /= law[2].sum()
    active, keys = jnp.ones(3, bool), jax.random.split(jax.random.key(4), 20_000)
    draw = jax.jit(jax.vmap(lambda key: arms_.drawn(ARMS, jnp.asarray(law), active, key)))
    arms, chance = map(np.asarray, draw(keys))
    np.testing.assert_allclose(chance[0].sum(1), 1, rtol=1e-5)
    for row in range(3):
        count, expected = np.bincount(arms[:, row], minlength=len(ARMS)), chance[0, row].astype(float) * len(keys)
        some = expected > 5
        assert count[expected == 0].sum() == 0
        assert stats.chisquare(count[some], expected[some] * (count[some].sum() / expected[some].sum())).pvalue > 1e-4
    wrong = law[0].astype(float) * len(keys)  # negative control: with several rows the law is not what is drawn
    some = wrong > 5
    count = np.bincount(arms[:, 0], minlength=len(ARMS))
    assert stats.chisquare(count[some], wrong[some] * (count[some].sum() / wrong[some].sum())).pvalue < 1e-9
    ran = [set(SOURCE[each]) & set(SHARED) for each in arms[:500]]
    assert max(map(len, ran)) == 1


def test_with_one_row_the_law_is_what_is_drawn():
    law = random_law(np.random.default_rng(2), 1)
    _, chance = arms_.drawn(ARMS, jnp.asarray(law), jnp.ones(1, bool), jax.random.key(0))
    np.testing.assert_allclose(chance, law, atol=1e-6)
    rows = random_law(np.random.default_rng(3), 3)
    one = jnp.asarray([True, False, False])
    _, chance = arms_.drawn(ARMS, jnp.asarray(rows), one, jax.random.key(0))
    np.testing.assert_allclose(chance[:1], rows[:1], atol=1e-6)  # finished rows have no say
    arm, _ = arms_.drawn(ARMS, jnp.asarray(rows), jnp.zeros(3, bool), jax.random.key(0))
    assert np.all(~np.isin(SOURCE[np.asarray(arm)], SHARED))


def test_weights_scale_what_a_source_gains_over_plain_decoding():
    value, plain = jnp.linspace(0.1, 0.9, len(ARMS)), jnp.full(len(ARMS), 0.3)
    weights = np.ones((2, 5))
    weights[1, 4] = 2
    got = np.asarray(arms_.weighed(ARMS, value, signals_of(np.full((2, 5), 7), steering={"weights": weights}), plain))
    np.testing.assert_allclose(got[0], value, rtol=1e-6)
    np.testing.assert_allclose(got[1], np.where(SOURCE == 4, 0.3 + 2 * (np.asarray(value) - 0.3), value), rtol=1e-5)
    np.testing.assert_allclose(arms_.weighed(ARMS, value, signals_of(np.full((1, 5), 7)), plain)[0], value)


def test_a_round_counts_for_the_arm_that_it_was_one_of():
    rows = len(ARMS)
    choice = arms_.choice_of(ARMS, jnp.arange(rows, dtype=jnp.int32), jnp.zeros((rows, rows), jnp.float32))
    np.testing.assert_array_equal(choice.source, SOURCE)
    np.testing.assert_array_equal(choice.lookahead, LOOKAHEAD)
    np.testing.assert_array_equal(arms_.played(ARMS, choice), np.arange(rows))
    cut = Choice(jnp.asarray([1, 4, 1]), jnp.asarray([4, 6, 7]), told={"arm": jnp.asarray([0, 0, 0])})  # 4 of 5 offered
    got = np.asarray(arms_.played(ARMS, cut))
    assert [(SOURCE[arm], LOOKAHEAD[arm]) for arm in got] == [(1, 5), (4, 7), (1, 7)]


def test_who_rides_and_has_nothing_is_credited_for_having_been_asked():
    first = int(np.flatnonzero((SOURCE == 2) & (LOOKAHEAD == 1))[0])
    settled = Choice(jnp.asarray([0, 0]), jnp.asarray([0, 0]), told={"arm": jnp.asarray([first, 3], jnp.int32)})
    arm = arms_.played(ARMS, settled)
    assert np.asarray(arm).tolist() == [first, 0]
    costs, signals = costs_of(ride=0.25), signals_of(np.zeros((2, 5), int))
    rewards = arms_.rewards(ARMS, costs, signals, settled, arm, jnp.asarray([1, 1]))
    assert float(rewards[0] / rewards[1]) == pytest.approx(1 / 1.25, rel=1e-5)


def test_without_shared_sources_rows_choose_for_themselves():
    arms = arms_.arms_of(FREE_ALONE)
    score = np.random.default_rng(5).random((4, len(arms))).astype(np.float32)
    got = arms_.picked(arms, jnp.asarray(score), jnp.ones(score.shape, bool), jnp.ones(4, bool))
    np.testing.assert_array_equal(got, score.argmax(1))
    assert arms_.groups(arms).tolist() == [[True] * len(arms)]


class Sums(NamedTuple):
    """A bandit's state."""

    total: Any
    rounds: Any
    told: Any


def test_what_a_call_has_learnt_begins_the_next():
    state, prior = Sums(jnp.float32(0), jnp.int32(0), {"worth": 1}), Sums(jnp.float32(5), jnp.int32(9), ())
    given = SelectorParams(costs_of(), prior)
    assert arms_.begun(given, state)._asdict() == {"total": 5, "rounds": 9, "told": {"worth": 1}}
    later = state._replace(total=jnp.float32(7), rounds=jnp.int32(1))
    assert arms_.begun(given, later)._asdict() == later._asdict()
    assert arms_.begun((), state) is arms_.begun(given._replace(prior=no_prior(KINDS)), state) is state
    assert jax.tree.structure(arms_.carry(given, state)) == jax.tree.structure(prior)


@pytest.mark.parametrize("name", sorted(BANDITS))
def test_a_bandit_goes_on_in_the_next_call_as_if_it_were_one(name):
    """Its prior has one structure from the first call on, so that no call recompiles."""
    selector, params = learned(name, texts.KINDS), texts.PARAMS._replace(prior=prior_of(name, texts.KINDS))
    records = [dataclasses.replace(texts.text(seed=seed).record) for seed in (1, 2)]
    records = [shifts.cut(record, 0, 150) for record in records]
    whole = replay(selector, params, records, texts.PRICES)
    first = replay(selector, params, records[:1], texts.PRICES)
    learnt = selector.carry(params, first.state)
    assert jax.tree.structure(learnt) == jax.tree.structure(params.prior)
    for mine, other in zip(jax.tree.leaves(learnt), jax.tree.leaves(params.prior), strict=True):
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
    second = replay(selector, params._replace(prior=learnt), records[1:], texts.PRICES)
    np.testing.assert_array_equal(second.text(0).source, whole.text(1).source)
    np.testing.assert_array_equal(second.text(0).lookahead, whole.text(1).lookahead)
    forgetful = replay(selector, params, records[1:], texts.PRICES).text(0)  # negative control
    short = min(len(forgetful.source), len(whole.text(1).source))
    assert np.any(forgetful.lookahead[:short] != whole.text(1).lookahead[:short])


@pytest.mark.parametrize("name", LEARNED)
def test_whatever_learns_has_something_for_the_next_call(name):
    selector = learned(name, texts.KINDS)
    begin = prior_of(name, texts.KINDS) or no_prior(texts.KINDS)
    params = texts.PARAMS._replace(prior=begin)
    ended = replay(selector, params, [shifts.cut(texts.text(seed=3).record, 0, 150)], texts.PRICES).state
    learnt = selector.carry(params, ended)
    assert jax.tree.structure(learnt) == jax.tree.structure(begin)
    pairs = list(zip(jax.tree.leaves(learnt), jax.tree.leaves(begin), strict=True))
    assert all((mine.shape, mine.dtype) == (other.shape, other.dtype) for mine, other in pairs)
    assert any(np.any(np.asarray(mine) != np.asarray(other)) for mine, other in pairs)
    assert learned("router", texts.KINDS).carry is None, "a router learns nothing"


def test_keys_are_of_the_round_alone():
    draw = lambda rounds, name: float(jax.random.uniform(arms_.key_of(jnp.int32(rounds), name)))  # noqa: E731
    assert draw(3, 1) == draw(3, 1)
    assert len({draw(3, 1), draw(4, 1), draw(3, 2)}) == 3


def test_costs_are_guessed_where_none_are_given():
    got, expected = arms_.cost_of((), KINDS), guess(KINDS.passes, KINDS.nodes, KINDS.windows)
    for each, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(each, other)
