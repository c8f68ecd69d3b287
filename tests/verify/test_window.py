"""How sure the target was: largest probability, margin and entropy."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.verify.window import certainty


def by_sort(logits):
    """In float64, with a sort, row by row."""
    out = []
    for row in np.asarray(logits, np.float64):
        p = np.exp(row - row.max())
        p /= p.sum()
        down = np.sort(p)[::-1]
        some = p[p > 0]
        out.append((down[0], down[0] - (down[1] if len(down) > 1 else 0), -np.sum(some * np.log(some))))
    return np.asarray(out).T


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0, 100.0])
def test_it_is_the_softmax_sorted(scale):
    logits = np.random.default_rng(0).normal(size=(16, 37)).astype(np.float32) * np.float32(scale)
    np.testing.assert_allclose(np.stack(certainty(jnp.asarray(logits))), by_sort(logits), atol=2e-5)


def test_ties_have_no_margin():
    logits = np.asarray([[3, 3, 1, 0], [2, 2, 2, 2], [0, 1, 1, -np.inf], [5, 4, 4, 4]], np.float32)
    top, margin, entropy = certainty(jnp.asarray(logits))
    np.testing.assert_allclose(np.stack([top, margin, entropy]), by_sort(logits), atol=1e-6)
    assert margin.tolist()[:3] == [0, 0, 0]
    assert margin[3] > 0.3, "ties below the largest are none"
    assert top[1] == 0.25


def test_banned_tokens_have_no_part_in_it():
    logits = np.random.default_rng(1).normal(size=(8, 12)).astype(np.float32)
    logits[:, ::2] = -np.inf
    logits[0] = -np.inf
    logits[0, 5] = 1.0
    got = np.stack(certainty(jnp.asarray(logits)))
    np.testing.assert_allclose(got, by_sort(logits), atol=1e-6)
    np.testing.assert_allclose(got, np.stack(certainty(jnp.asarray(logits[:, 1::2]))), atol=1e-6)
    assert got[:, 0].tolist() == [1, 1, 0], "one token alone is sure"


def test_a_shift_of_all_logits_and_half_precision_change_little():
    logits = np.random.default_rng(2).normal(size=(4, 20)).astype(np.float32)
    np.testing.assert_allclose(
        np.stack(certainty(jnp.asarray(logits + 1000))), by_sort(logits + np.float32(1000)), atol=1e-4
    )
    half = jnp.asarray(logits, jnp.bfloat16)
    got = certainty(half)
    assert all(each.dtype == jnp.float32 for each in got)
    np.testing.assert_allclose(np.stack(got), by_sort(np.asarray(half, np.float32)), atol=1e-5)
