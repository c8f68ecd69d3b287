"""Every column says what its table says it does, and what is not known is 0."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.contracts import Seen
from jaxspec.sampling.confidence import ODDS
from jaxspec.select.features import WIDTH, features, naive_weights
from tests.select.made import KINDS, MOST, signals_of

NONE, LOOKUP, JACOBI, EXIT, LM = range(5)


def of(offered, depth=MOST, **more):
    return np.asarray(features(signals_of(offered, **more), depth, KINDS.free))


def seen(top=0.0, entropy=0.0, domain=-1):
    def one(value, dtype=jnp.float32):
        return jnp.asarray([value], dtype)

    return Seen(one(top), one(0.0), one(entropy), one(domain, jnp.int32))


ALL = [[0, 7, 7, 7, 7]]


def test_with_nothing_known_there_is_the_bias_of_passes_and_the_depth():
    x = of([[0, 0, 0, 7, 7]])
    assert x.shape == (1, 5, MOST, WIDTH)
    assert WIDTH == 32
    assert x.dtype == np.float32
    wanted = np.zeros((5, MOST, WIDTH))
    wanted[[EXIT, LM], :, 0] = 1
    for depth in range(MOST):
        wanted[:, depth, 8 + min(depth, 5)] = 1
    np.testing.assert_array_equal(x[0], wanted)


@pytest.mark.parametrize("matched", [1, 2, 5, 6, 7, 8, 16, 300])
def test_a_match_is_one_of_seven_and_a_long_one_more_than_that(matched):
    x = of(ALL, match=[[0, matched, 0, 0, 0]])[0]
    columns = np.zeros(7)
    columns[min(matched, 7) - 1] = 1
    for depth in range(MOST):
        np.testing.assert_array_equal(x[LOOKUP, depth, 1:8], columns)
    np.testing.assert_allclose(x[LOOKUP, :, 17], np.log(1 + max(matched - 6, 0)) / 2, rtol=1e-6)
    assert not x[[NONE, JACOBI, EXIT, LM], :, 1:8].any(), "of its own source alone"


def test_a_match_of_what_is_not_offered_or_of_a_model_is_none():
    x = of([[0, 0, 7, 7, 7]], match=[[3, 3, 0, 3, 3]], confidence=[[0.9, 0.9, 0.5, 0.9, 0.9]])[0]
    assert not x[:, :, 1:8].any()
    assert not x[:, :, 16:18].any()


def test_the_confidence_of_a_free_source_counts_from_one_half():
    x = of(ALL, confidence=[[1.0, 0.75, 0.2, 1.0, 1.0]])[0]
    np.testing.assert_allclose(x[:, 0, 16], [0, 0.25, -0.3, 0, 0], atol=1e-7)
    assert not of(ALL)[..., 16].any()


@pytest.mark.parametrize("top", [0.5, 0.7, 0.99, 0.999999])
def test_the_targets_certainty_is_every_sources(top):
    x = of(ALL, seen=seen(top, 1.2))[0]
    log_odds = np.clip(np.log(top / (1 - top)), -ODDS, ODDS) / ODDS
    np.testing.assert_allclose(x[:, :, 14], log_odds, atol=1e-4)
    np.testing.assert_allclose(x[:, :, 15], 1.2 / 3, rtol=1e-6)
    before = of(ALL, seen=seen(0.0, 1.2))[0]
    assert not before[..., 14:16].any(), "before the first round nothing is known"


def test_the_callers_tag_goes_before_the_cluster():
    def kind(**more):
        found = of(ALL, **more)[0, 0, 0, 18:26]
        return np.flatnonzero(found).tolist()

    assert kind(seen=seen(domain=5)) == [5]
    assert kind(seen=seen(domain=11)) == [3]
    assert kind(seen=seen()) == []
    assert kind(seen=seen(domain=5), steering={"domain": 2}) == [2]
    assert kind(seen=seen(domain=5), steering={"domain": -1}) == [5]
    assert kind(steering={"domain": 9}) == [1]


def test_the_class_of_the_last_token():
    for klass in range(6):
        assert np.flatnonzero(of(ALL, token_class=[klass])[0, 1, 2, 26:]).tolist() == [klass]
    assert not of(ALL, token_class=[-1])[..., 26:].any()


def test_rows_are_their_own():
    rows = of([[0, 3, 0, 7, 7], [0, 7, 7, 7, 7]], match=[[0, 4, 0, 0, 0], [0, 0, 2, 0, 0]], token_class=[1, 3])
    np.testing.assert_array_equal(rows[0], of([[0, 3, 0, 7, 7]], match=[[0, 4, 0, 0, 0]], token_class=[1])[0])
    np.testing.assert_array_equal(rows[1], of([[0, 7, 7, 7, 7]], match=[[0, 0, 2, 0, 0]], token_class=[3])[0])
    assert (rows[0] != rows[1]).any()


def test_every_number_is_about_one_at_most():
    rng = np.random.default_rng(0)
    top = jnp.asarray(rng.random(50) ** 9, jnp.float32)
    extreme = Seen(top, top, jnp.full(50, 11.0), jnp.full(50, 9))
    x = of(
        rng.integers(0, 8, (50, 5)), match=rng.integers(0, 17, (50, 5)), confidence=rng.random((50, 5)), seen=extreme
    )
    assert np.abs(np.delete(x, 15, -1)).max() <= 1.2
    assert np.isfinite(x).all()


def test_nobody_who_has_seen_nothing_trusts_a_short_match_like_a_long_one():
    weights = jnp.asarray(naive_weights(KINDS.free))

    def first(source, **more):
        score = (of(ALL, **more)[0, source, 0] * np.asarray(weights)[source]).sum()
        return 1 / (1 + np.exp(-score))

    chances = [first(LOOKUP, match=[[0, m, 0, 0, 0]]) for m in range(1, 8)]
    assert chances == sorted(chances)
    np.testing.assert_allclose(chances, [0.4, 0.5, 0.6, 0.7, 0.8, 0.8, 0.8], atol=1e-6)
    assert first(LM, seen=seen(0.95)) > first(LM) > first(LM, seen=seen(0.2)) > 0.3


def test_kinds_say_which_sources_are_at_hand():
    assert KINDS.free == (True, True, True, False, False)
    assert KINDS.models == (EXIT, LM)
    assert dataclasses.replace(KINDS, passes=(False,) * 5).models == ()
