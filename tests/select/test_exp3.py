"""Exp3.S: its law and weights are the paper's with a mean taken off, its estimates are unbiased, and it learns."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.contracts import Choice, Verdict
from jaxspec.select.exp3 import exp3, mixed, spread
from tests.select import texts
from tests.select.made import signals_of

M = len(texts.ARMS)


def test_a_law_is_of_the_arms_at_hand():
    rng = np.random.default_rng(0)
    weights, there = rng.normal(size=(4, M)).astype(np.float32), rng.random((4, M)) < 0.6
    there[:, 0] = True
    got = np.asarray(mixed(jnp.asarray(weights), jnp.asarray(there), 0.2))
    raw = np.exp(weights) * there
    expected = 0.8 * raw / raw.sum(1, keepdims=True) + 0.2 * there / there.sum(1, keepdims=True)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)


def test_a_share_of_all_weight_is_spread():
    weights = np.log(np.asarray([0.7, 0.2, 0.1], np.float32))
    np.testing.assert_allclose(np.exp(spread(jnp.asarray(weights), 0.3)), [0.59, 0.24, 0.17], rtol=1e-5)


def one_round(selector, state, arm, tokens, offered=8):
    signals = signals_of(np.full((1, 3), offered))
    source, lookahead = (jnp.asarray([each[arm]], jnp.int32) for each in (texts.ARMS.source, texts.ARMS.lookahead))
    verdict = Verdict(jnp.zeros(1, jnp.int32), jnp.zeros((1, 9), jnp.int32), jnp.asarray([tokens], jnp.int32), None)
    return jax.jit(selector.update)(texts.PARAMS, state, signals, Choice(source, lookahead), None, verdict, None)


def test_weights_move_by_the_reward_over_its_chance():
    selector = exp3(texts.KINDS, rate=0.01, mix=0.1, share=0.0)
    rng = np.random.default_rng(1)
    weights = np.log(rng.dirichlet(np.ones(M))).astype(np.float32)
    state = selector.init(1, 3)._replace(weights=jnp.asarray(weights), mean=jnp.float32(0.2), rounds=jnp.int32(5))
    law = 0.9 * np.exp(weights) + 0.1 / M
    best = max((k + 1) / texts.PRICES.verify[k] for k in range(9))
    for arm in (0, 4, M - 1):
        source, lookahead = texts.ARMS.source[arm], texts.ARMS.lookahead[arm]
        reward = 2 / (texts.PRICES.verify[lookahead] + texts.PRICES.draft[source, lookahead]) / best
        expected = weights.astype(np.float64)
        expected[arm] += np.clip(0.01 * (reward - 0.2) / law[arm], -1, 1)
        expected -= np.log(np.exp(expected).sum())
        np.testing.assert_allclose(one_round(selector, state, arm, 2).weights, expected, rtol=1e-4, atol=1e-5)


def test_it_draws_as_its_law_says():
    selector, signals = exp3(texts.KINDS), signals_of(np.asarray([[0, 8, 0]]))
    state = selector.init(1, 3)
    arms = jax.jit(
        jax.vmap(lambda rounds: selector.choose(texts.PARAMS, state._replace(rounds=rounds), signals).told["arm"][0])
    )(jnp.arange(4000))
    count = np.bincount(np.asarray(arms), minlength=M)
    at_hand = np.asarray(texts.ARMS.source) != 2
    assert count[~at_hand].sum() == 0  # what is not offered, or banned, is never drawn
    expected = 4000 / at_hand.sum()
    assert np.sum((count[at_hand] - expected) ** 2 / expected) < 30


def test_it_learns_and_its_regret_falls():
    process = texts.text()
    played, deaf = (texts.played(each, process) for each in (exp3(texts.KINDS), texts.deaf(exp3(texts.KINDS))))
    assert texts.share_of_good(played, within=0.1) > 0.7
    assert texts.share_of_good(deaf, within=0.1) < 0.5  # negative control
    regret, linear = texts.regret_in_quarters(played), texts.regret_in_quarters(deaf)
    assert regret[2:].sum() < 0.7 * regret[:2].sum()
    assert linear[2:].sum() > 0.8 * linear[:2].sum()
