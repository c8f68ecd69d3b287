"""Thompson sampling: what it believes is the posterior's mean and spread, and it settles on what is best."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.contracts import Choice, Verdict
from jaxspec.select.thompson import SPREAD, believed, thompson
from tests.select import texts
from tests.select.made import signals_of

M = len(texts.ARMS)


def test_what_is_believed_is_the_mean_and_spread_of_what_was_seen_and_hoped():
    rng = np.random.default_rng(0)
    seen = [rng.random(n).astype(np.float32) for n in (0, 1, 4, 200)]
    sums = ([len(each) for each in seen], [each.sum() for each in seen], [(each**2).sum() for each in seen])
    hoped = np.asarray([0.2, 0.4, 0.6, 0.9], np.float32)
    mean, spread = believed(*(jnp.asarray(each, jnp.float32) for each in sums), jnp.asarray(hoped), 1.0)
    for arm, rewards in enumerate(seen):
        size = 1 + len(rewards)
        middle = (hoped[arm] + rewards.sum()) / size
        variance = (((rewards - middle) ** 2).sum() + SPREAD**2 + (hoped[arm] - middle) ** 2) / size
        assert mean[arm] == pytest.approx(middle, rel=1e-5)
        assert spread[arm] == pytest.approx(np.sqrt(variance / size), rel=1e-3)
    assert spread[0] == pytest.approx(SPREAD)
    assert spread[3] < 0.3 * spread[0]


def test_draws_are_of_the_round_and_the_same_again():
    selector, signals = thompson(texts.KINDS), signals_of(np.full((2, 3), 8))
    state, arms = selector.init(2, 3), []
    choose, update = jax.jit(selector.choose), jax.jit(selector.update)
    verdict = Verdict(jnp.zeros(2, jnp.int32), jnp.zeros((2, 9), jnp.int32), jnp.ones(2, jnp.int32), None)
    for _ in range(12):
        choice = choose(texts.PARAMS, state, signals)
        again = choose(texts.PARAMS, state, signals)
        np.testing.assert_array_equal(choice.told["arm"], again.told["arm"])
        assert choice.told["arm"][0] == choice.told["arm"][1]  # rows of a step share the draw
        arms.append(int(choice.told["arm"][0]))
        after = update(texts.PARAMS, state, signals, choice, None, verdict, None)
        state = state._replace(rounds=after.rounds)  # as if nothing had been seen
    assert len(set(arms)) > 3


def test_counts_are_of_the_arm_that_ran():
    selector, signals = thompson(texts.KINDS, keep=1.0), signals_of(np.full((1, 3), 8))
    verdict = Verdict(jnp.zeros(1, jnp.int32), jnp.zeros((1, 9), jnp.int32), jnp.asarray([4], jnp.int32), None)
    choice = Choice(jnp.asarray([2], jnp.int32), jnp.asarray([5], jnp.int32))
    state = selector.update(texts.PARAMS, selector.init(1, 3), signals, choice, None, verdict, None)
    arm = int(np.flatnonzero(state.plays)[0])
    assert (texts.ARMS.source[arm], texts.ARMS.lookahead[arm]) == (2, 5)
    assert state.squares[arm] == pytest.approx(float(state.total[arm]) ** 2, rel=1e-5)


def test_it_finds_the_best_arm_and_its_regret_flattens():
    selector, process = thompson(texts.KINDS, keep=1.0), texts.text()
    played, deaf = (texts.played(each, process) for each in (selector, texts.deaf(selector)))
    assert texts.share_of_good(played) > 0.9
    assert texts.share_of_good(deaf) < 0.5  # negative control
    regret, linear = texts.regret_in_quarters(played), texts.regret_in_quarters(deaf)
    assert regret[2:].sum() < 0.5 * regret[:2].sum()
    assert linear[2:].sum() > 0.8 * linear[:2].sum()
    assert regret.sum() < 0.1 * linear.sum()
