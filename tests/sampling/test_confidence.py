"""A draft's confidence as a chance, and when a chain is worth going on."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.sampling.confidence import NEXT, ODDS, goes_on, odds, trusted


def logit(p):
    return np.log(p) - np.log1p(-p)


def test_odds_are_log_odds_between_minus_one_and_one():
    p = np.linspace(0.02, 0.98, 49)
    np.testing.assert_allclose(odds(jnp.asarray(p, jnp.float32)), logit(p) / ODDS, atol=1e-5)
    assert odds(jnp.asarray([0.0, 1.0, 1e-4, 1 - 1e-4])).tolist() == [-1, 1, -1, 1]


def test_believed_as_it_is_within_the_clip():
    least = 1 / (1 + np.exp(ODDS))
    p = np.asarray([[0.0, 0.001, least, 0.1, 0.5, 0.9, 1 - least, 0.999, 1.0]], np.float32)
    as_it_is = trusted(jnp.asarray(p), jnp.zeros(1), jnp.full(1, ODDS))
    np.testing.assert_allclose(as_it_is, np.clip(p, least, 1 - least), atol=1e-6)
    halved = trusted(jnp.asarray(p), jnp.zeros(1), jnp.full(1, ODDS / 2))  # negative control
    assert np.abs(np.asarray(halved) - np.clip(p, least, 1 - least)).max() > 0.05


def test_each_row_has_its_own_trust():
    p = np.asarray([[0.3, 0.8]] * 3, np.float32)
    intercept, slope = np.asarray([0.0, 1.0, -2.0]), np.asarray([4.0, 2.0, 0.0])
    wanted = 1 / (1 + np.exp(-(intercept[:, None] + slope[:, None] * logit(p) / ODDS)))
    got = trusted(jnp.asarray(p), *(jnp.asarray(each, jnp.float32) for each in (intercept, slope)))
    np.testing.assert_allclose(got, wanted, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_one_more_draft_is_worth_it_where_tokens_per_time_would_rise(seed):
    rng = np.random.default_rng(seed)
    chain, drawn = rng.random(1000), rng.integers(1, 9, 1000)
    tokens, base, step = 1 + drawn * rng.random(1000), 0.5 + rng.random(1000), 0.3 * rng.random(1000)
    now, then = tokens / (base + drawn * step), (tokens + chain * NEXT) / (base + (drawn + 1) * step)
    clear = np.abs(then / now - 1) > 1e-5
    each = (jnp.asarray(value, jnp.float32) for value in (chain, tokens, drawn, base, step))
    np.testing.assert_array_equal(np.asarray(goes_on(*each))[clear], (then >= now)[clear])
    assert 0.1 < np.mean(then >= now) < 0.9


def test_a_draft_that_costs_nothing_is_always_worth_it_and_a_hopeless_one_never():
    one = jnp.float32(1)
    assert goes_on(jnp.float32(0.01), jnp.float32(9), one, one, jnp.float32(0))
    assert not goes_on(jnp.float32(0), one, one, one, jnp.float32(0.01))
