"""Rotary frequencies: closed forms, the positions they depend on, and the length that `for_length` fixes."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest

import tests.models.tiny as t
from jaxspec.models import RopeScaling, for_length
from jaxspec.models.layers import rope_tables, rotate
from jaxspec.models.rope import attention_factor, frequencies

POSITIONS = jnp.asarray([[0, t.TRAINED - 1, t.TRAINED, 40]], jnp.int32)


def inverse(name: str, **scaling) -> np.ndarray:
    config = t.tiny(name)
    config = dataclasses.replace(config, rope_scaling=dataclasses.replace(config.rope_scaling, **scaling))
    return np.asarray(frequencies(config, POSITIONS, local=False)[0])


def plain(name: str) -> np.ndarray:
    config = t.tiny(name)
    return config.rope_theta ** -(np.arange(0, config.rotary_dim, 2) / config.rotary_dim)


def test_plain_and_linear():
    np.testing.assert_allclose(inverse("llama2"), plain("llama2"), rtol=1e-6)
    np.testing.assert_allclose(inverse("linear"), plain("linear") / 3.0, rtol=1e-6)


@pytest.mark.parametrize("name", ["llama3", "yarn"])
def test_short_waves_stay_and_long_ones_stretch(name: str):
    """By the factor at most, and monotonically."""
    ratio = plain(name) / inverse(name)
    factor = t.tiny(name).rope_scaling.factor
    assert ratio[0] == pytest.approx(1.0, rel=1e-6)
    assert ratio[-1] == pytest.approx(factor, rel=0.5)
    assert (np.diff(ratio) > -1e-5).all()
    assert ((ratio > 1.01) & (ratio < factor - 0.01)).any(), "some lie between"


def test_dynamic_depends_on_a_tokens_own_position():
    """Plain within the trained context; beyond it the longest wave stretches by factor * n / max - factor + 1."""
    got, base = inverse("dynamic"), plain("dynamic")
    assert got.shape == (4, 1, 4)
    np.testing.assert_allclose(got[:, 0, :2], np.stack([base, base], 1), rtol=1e-6)
    stretch = 4.0 * 41 / t.TRAINED - 3.0
    assert base[-1] / got[-1, 0, 3] == pytest.approx(stretch, rel=1e-5)
    assert got[0, 0, 3] == pytest.approx(1.0)


def test_longrope_changes_factors_beyond_the_trained_context():
    got, base = inverse("longrope"), plain("longrope")
    short, long = (np.asarray(t.LONGROPE[name]) for name in ("short_factor", "long_factor"))
    np.testing.assert_allclose(got[:, 0, 1], base / short, rtol=1e-6)
    np.testing.assert_allclose(got[:, 0, 2], base / long, rtol=1e-6)


@pytest.mark.parametrize("name", t.LENGTH_SCALINGS)
def test_a_fixed_length_gives_every_position_the_frequencies_of_the_last(name: str):
    config = for_length(t.tiny(name), 41)
    fixed = np.asarray(frequencies(config, POSITIONS, local=False)[0])
    np.testing.assert_allclose(fixed, inverse(name)[:, 0, 3], rtol=1e-6)


@pytest.mark.parametrize("name", t.LENGTH_SCALINGS)
def test_a_length_within_the_trained_context_changes_nothing(name: str):
    config = t.tiny(name)
    assert for_length(config, t.TRAINED) == config
    assert for_length(for_length(config, 1000), t.TRAINED) == config
    assert for_length(config, t.TRAINED + 1) != config


def test_lengths_matter_to_no_other_scaling():
    for name in ("llama2", "llama3", "yarn", "linear", "gemma3"):
        assert for_length(t.tiny(name), 10**6) == t.tiny(name)


def test_all_lengths_beyond_are_one_program_for_longrope():
    assert for_length(t.tiny("longrope"), 30) == for_length(t.tiny("longrope"), 31)
    with pytest.raises(ValueError, match="length is 0"):
        for_length(t.tiny("longrope"), 0)


def test_divided_frequencies_do_not_depend_on_the_position():
    """GGUF's rope_freqs: both sets of factors alike."""
    assert inverse("longrope", short_factor=(1.0, 2.0, 3.0), long_factor=(1.0, 2.0, 3.0)).shape == (3,)


def test_attention_factors():
    yarn = RopeScaling("yarn", factor=4.0, original_max_positions=16)
    assert attention_factor(yarn) == pytest.approx(0.1 * math.log(4.0) + 1.0)
    assert attention_factor(dataclasses.replace(yarn, factor=0.5)) == 1.0
    assert attention_factor(dataclasses.replace(yarn, attention_factor=0.7)) == 0.7
    both = dataclasses.replace(yarn, mscale=2.0, mscale_all_dim=1.0)
    assert attention_factor(both) == pytest.approx((0.2 * math.log(4.0) + 1.0) / (0.1 * math.log(4.0) + 1.0))
    assert attention_factor(t.tiny("longrope").rope_scaling) == pytest.approx(math.sqrt(1 + math.log(4) / math.log(16)))
    assert attention_factor(t.tiny("llama3").rope_scaling) == 1.0


def test_local_layers_have_their_own_base_and_no_scaling():
    config = t.tiny("gemma3")
    local, factor = frequencies(config, POSITIONS, local=True)
    expected = config.rope_local_theta ** -(np.arange(0, 8, 2) / 8)
    np.testing.assert_allclose(np.asarray(local), expected, rtol=1e-6)
    assert factor == 1.0


def test_scores_depend_on_the_distance_alone():
    """Rotation by position turns query and key by the same angle a token."""
    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.standard_normal((1, 8, 1, 1)), jnp.float32) for _ in range(2))
    waves = jnp.asarray(inverse("llama2"))

    def score(i: int, j: int) -> float:
        turned = [rotate(x, *rope_tables(jnp.full((1, 1), at, jnp.int32), waves, 1.0)) for x, at in ((q, i), (k, j))]
        return float(jnp.vdot(*turned))

    assert score(9, 4) == pytest.approx(score(25, 20), abs=1e-5)
    assert abs(score(9, 4) - score(9, 5)) > 1e-3


def test_the_rest_of_a_head_does_not_turn():
    x = jnp.ones((1, 8, 1, 1), jnp.float32)
    cos, sin = rope_tables(jnp.full((1, 1), 5, jnp.int32), jnp.asarray([1.0, 0.3, 0.1], jnp.float32), 1.0)
    turned = np.asarray(rotate(x, cos, sin))
    np.testing.assert_array_equal(turned[:, 6:], 1.0)
    assert (np.abs(turned[:, :6] - 1.0) > 1e-3).all()
