"""A product in bfloat16 is the float32 product rounded once, whatever the number of columns; so are its slopes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.models.layers import MANY, linear, linear_tokens_first

OUT, IN = 48, 40
ROUNDING = 2.0**-8
"""Of a bfloat16, relative; the slopes of the two factors are rounded once."""


def factors(columns: int) -> tuple[jax.Array, jax.Array]:
    keys = jax.random.split(jax.random.key(columns))
    weight = jax.random.normal(keys[0], (OUT, IN), jnp.bfloat16)
    return weight, jax.random.normal(keys[1], (IN, 1, columns), jnp.bfloat16)


def exact(weight: jax.Array, x: jax.Array) -> np.ndarray:
    return np.einsum("oi,ibt->obt", np.asarray(weight, np.float64), np.asarray(x, np.float64))


def near(got, wanted) -> None:
    """Sums of tens of terms near one in float32 err by some 1e-6 before they are rounded."""
    np.testing.assert_allclose(np.asarray(got, np.float64), wanted, rtol=ROUNDING, atol=1e-4)


@pytest.mark.parametrize("columns", [1, 2, 3, 16, 33])
def test_bfloat16_product_is_the_exact_one_rounded_once(columns: int):
    weight, x = factors(columns)
    got = jax.jit(linear)(weight, x)
    assert got.dtype == jnp.bfloat16
    assert got.shape == (OUT, 1, columns)
    near(got, exact(weight, x))
    summed_in_bfloat16 = sum((weight[:, i, None] * x[i, 0][None] for i in range(IN)), jnp.zeros((), jnp.bfloat16))
    with pytest.raises(AssertionError):
        near(summed_in_bfloat16[:, None], exact(weight, x))


@pytest.mark.parametrize("columns", [1, 5])
def test_slopes_of_a_bfloat16_product_are_exact_but_for_one_rounding(columns: int):
    weight, x = factors(columns)
    slope = jax.random.normal(jax.random.key(9), (OUT, 1, columns), jnp.bfloat16)
    _, back = jax.vjp(linear, weight, x)
    to_weight, to_x = jax.jit(back)(slope)
    wanted = np.einsum("obt,ibt->oi", np.asarray(slope, np.float64), np.asarray(x, np.float64))
    near(to_weight, wanted)
    near(to_x, np.einsum("oi,obt->ibt", np.asarray(weight, np.float64), np.asarray(slope, np.float64)))
    with pytest.raises(AssertionError):
        near(to_weight, wanted[::-1])


@pytest.mark.parametrize("columns", [3, MANY])
def test_tokens_first_is_the_same_product_with_the_same_slopes(columns: int):
    weight, x = factors(columns)
    rows, back = jax.vjp(linear_tokens_first, weight, x)
    assert rows.dtype == jnp.float32
    assert rows.shape == (1, columns, OUT)
    near(rows, exact(weight, x).transpose(1, 2, 0))
    slope = jax.random.normal(jax.random.key(9), rows.shape, jnp.bfloat16)
    to_weight, to_x = jax.jit(back)(slope.astype(jnp.float32))
    turned = np.asarray(slope, np.float64)
    wanted = np.einsum("bto,ibt->oi", turned, np.asarray(x, np.float64))
    near(to_weight, wanted)
    near(to_x, np.einsum("oi,bto->ibt", np.asarray(weight, np.float64), turned))
    with pytest.raises(AssertionError):
        near(to_weight, wanted[::-1])


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the form of the product is one for CPUs")
def test_no_bfloat16_product_on_a_cpu_has_one_column():
    """With one XLA makes a loop of it, with two a call of the matrix tiles: fifteen times as fast."""

    def columns(function) -> set[int]:
        weight, x = factors(1)
        text = jax.jit(function).lower(weight, x).as_text()
        lines = [line for line in text.splitlines() if "dot_general" in line]
        return {int(line.rsplit("->", 1)[1].split("x")[1].split(">")[0].split("xf")[0]) for line in lines}

    assert columns(linear) == {2}
    assert columns(lambda weight, x: weight @ x[:, 0]) == {1}
