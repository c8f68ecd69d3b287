import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxspec.sampling import Purpose, gumbel, noise, uniform
from tests.verify.law import FAILS, HOLDS, SEEDS

VOCAB = 12
SEED = jnp.array([7, 2**32 - 1, 0], jnp.uint32)
POSITIONS = jnp.array([[4, 5, 6], [0, 1, 2], [4, 5, 6]], jnp.int32)


@pytest.mark.parametrize("purpose", list(Purpose))
def test_a_value_depends_on_seed_and_position_alone(purpose):
    together = gumbel(SEED, POSITIONS, VOCAB, purpose=purpose)
    judged = uniform(SEED, POSITIONS, purpose)
    for row, column in np.ndindex(3, 3):
        seed, position = SEED[row : row + 1], POSITIONS[row : row + 1, column : column + 1]
        np.testing.assert_array_equal(together[row, column], gumbel(seed, position, VOCAB, purpose=purpose)[0, 0])
        assert judged[row, column] == uniform(seed, position, purpose)[0, 0]


def test_a_larger_vocabulary_changes_no_value():
    np.testing.assert_array_equal(gumbel(SEED, POSITIONS, VOCAB), gumbel(SEED, POSITIONS, 100)[..., :VOCAB])


def test_seeds_positions_purposes_and_starts_all_differ():
    start = jnp.full(3, 4, jnp.int32)
    draws = [gumbel(SEED, POSITIONS, VOCAB, purpose=purpose) for purpose in Purpose]
    draws += [gumbel(SEED, POSITIONS, VOCAB, purpose=Purpose.DRAFT, start=start + n) for n in range(2)]
    values = np.concatenate([np.ravel(draw) for draw in draws])
    assert np.unique(values).size > 0.999 * values.size


def test_a_purpose_may_differ_by_position():
    purposes = jnp.array([[0, 2, 3]] * 3, jnp.int32)
    mixed = gumbel(SEED, POSITIONS, VOCAB, purpose=purposes)
    for column, purpose in enumerate((0, 2, 3)):
        np.testing.assert_array_equal(mixed[:, column], gumbel(SEED, POSITIONS, VOCAB, purpose=purpose)[:, column])


def test_gumbel_noise_is_gumbel_and_consecutive_seeds_are_independent():
    values = np.asarray(gumbel(SEEDS, jnp.zeros((SEEDS.size, 1), jnp.int32), 1)).ravel()
    assert scipy.stats.kstest(values, "gumbel_r").pvalue > HOLDS
    assert scipy.stats.kstest(-values, "gumbel_r").pvalue < FAILS
    assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < 4 / np.sqrt(values.size)


def test_uniform_noise_is_uniform_from_zero_to_below_one():
    values = np.asarray(uniform(SEEDS, jnp.full((SEEDS.size, 1), 9, jnp.int32), Purpose.ACCEPT)).ravel()
    assert scipy.stats.kstest(values, "uniform").pvalue > HOLDS
    assert scipy.stats.kstest(values * 0.97, "uniform").pvalue < FAILS
    assert values.min() >= 0
    assert values.max() < 1


def test_purposes_are_uncorrelated():
    at = jnp.zeros((SEEDS.size, 1), jnp.int32)
    draws = np.stack([np.ravel(gumbel(SEEDS, at, 1, purpose=purpose)) for purpose in Purpose])
    off_diagonal = np.corrcoef(draws)[~np.eye(len(Purpose), dtype=bool)]
    assert np.abs(off_diagonal).max() < 4 / np.sqrt(SEEDS.size)


def test_every_pattern_of_bits_gives_a_finite_gumbel_and_a_uniform_below_one():
    bits = jnp.array([0, 1, 255, 256, 2**31, 2**32 - 257, 2**32 - 256, 2**32 - 1], jnp.uint32)
    race = np.asarray(noise.to_gumbel(bits))
    assert np.isfinite(race).all()
    assert (np.diff(race) <= 0).all()
    assert race[0] > 22  # one draw in 2^32: a token of probability 1e-9 has its chance
    assert noise.to_uniform(bits).min() == 0
    assert noise.to_uniform(bits).max() < 1
