"""Linear, norm and rotary layers on feature-major activations [D, B, T].

Weights are [out, in] and activations keep their features first, so that every product is `W @ x` with the window's
tokens as columns. On CPUs a window of 8 then reads the weights at nearly the speed of a window of 1, where
`x @ W.T` loses half of it.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxspec.models.config import ModelConfig


class Linear(nnx.Module):
    """y = W x (+ b) over the leading feature axis."""

    def __init__(self, in_size: int, out_size: int, *, bias: bool, rngs: nnx.Rngs, dtype: DTypeLike):
        scale = jnp.asarray(in_size**-0.5, dtype)
        self.weight = nnx.Param(jax.random.normal(rngs.params(), (out_size, in_size), dtype) * scale)
        self.bias = nnx.Param(jnp.zeros(out_size, dtype)) if bias else None

    def __call__(self, x: Float[Array, "I B T"]) -> Float[Array, "O B T"]:
        y = linear(self.weight[...], x)
        return y if self.bias is None else y + self.bias[...][:, None, None]


def linear(weight: Float[Array, "O I"], x: Float[Array, "I B T"]) -> Float[Array, "O B T"]:
    """W x, accumulated in float32 at full precision."""
    flat = x.reshape(x.shape[0], -1)
    y = jax.lax.platform_dependent(weight, flat, cpu=_product, default=_exact_product)
    return y.reshape(weight.shape[0], *x.shape[1:])


def _product(weight: jax.Array, x: jax.Array) -> jax.Array:
    """CPUs multiply float32 exactly; asked for it by name, XLA's product with one column is a tenth slower there."""
    if weight.dtype == x.dtype == jnp.bfloat16:
        return _tiles(weight, x)
    return jnp.matmul(weight, x)


@jax.custom_vjp
def _tiles(weight: Float[Array, "O I"], x: Float[Array, "I N"]) -> Float[Array, "O N"]:
    """A bfloat16 product on CPUs by their matrix tiles, where they have such.

    XLA takes them for sums in float32, a left factor as it lies in memory, and two columns or more; of any other form
    it makes loops that are five to fifteen times slower. Weights then come at the memory's speed in windows of up to
    sixteen tokens. float16 has no such form: its products take as long either way.
    """
    columns = x.shape[1]
    padded = jnp.pad(x, ((0, 0), (0, 1))) if columns == 1 else x
    return _sums(weight, padded, 0)[:, :columns].astype(x.dtype)


def _tiles_forward(weight: jax.Array, x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _tiles(weight, x), (weight, x)


def _tiles_backward(kept: tuple[jax.Array, jax.Array], slope: jax.Array) -> tuple[jax.Array, jax.Array]:
    weight, x = kept
    return _sums(slope, x, 1).astype(weight.dtype), _sums(_by_columns(weight), slope, 0)[:-1].astype(x.dtype)


_tiles.defvjp(_tiles_forward, _tiles_backward)


def _by_columns(x: Float[Array, "I N"]) -> Float[Array, "N+1 I"]:
    """The columns of x as rows, and one row of zeros: without it XLA folds the transposition into the product that
    follows, whose left factor then lies the wrong way for the tiles.
    """
    return jnp.pad(x.T, ((0, 1), (0, 0)))


def _sums(left: jax.Array, right: jax.Array, axis: int) -> jax.Array:
    """left times right over `axis` of right, in float32."""
    return jax.lax.dot_general(left, right, (((1,), (axis,)), ((), ())), preferred_element_type=jnp.float32)


def _exact_product(weight: jax.Array, x: jax.Array) -> jax.Array:
    """TPUs and GPUs round float32 to fewer bits unless told otherwise."""
    return jnp.matmul(weight, x, precision=jax.lax.Precision.HIGHEST)


def linear_tokens_first(weight: Float[Array, "O I"], x: Float[Array, "I B T"]) -> Float[Array, "B T O"]:
    """W x in float32, each token's results side by side: what sums over a large O reads best.

    In bfloat16 on a CPU a batch of hundreds of tokens comes out of the product so; elsewhere it is turned afterwards.
    """
    flat = x.reshape(x.shape[0], -1)
    if weight.dtype == x.dtype == jnp.bfloat16 and flat.shape[1] >= MANY:
        rows = jax.lax.platform_dependent(weight, flat, cpu=_tiles_turned, default=_turned)
    else:
        rows = _turned(weight, flat)
    return rows.reshape(*x.shape[1:], weight.shape[0])


MANY = 256
"""Tokens from which turning them costs less than turning what is made of them."""


def _turned(weight: jax.Array, x: jax.Array) -> jax.Array:
    return linear(weight, x[:, None, :])[:, 0].astype(jnp.float32).T


@jax.custom_vjp
def _tiles_turned(weight: Float[Array, "O I"], x: Float[Array, "I N"]) -> Float[Array, "N O"]:
    return _sums(_by_columns(x), weight, 1)[:-1]


def _tiles_turned_forward(weight: jax.Array, x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _tiles_turned(weight, x), (weight, x)


def _tiles_turned_backward(kept: tuple[jax.Array, jax.Array], slope: jax.Array) -> tuple[jax.Array, jax.Array]:
    weight, x = kept
    slope = slope.astype(weight.dtype)
    to_weight = _sums(_by_columns(slope), _by_columns(x)[:-1], 0)[:-1]
    # not the transposed product of slope and weight: XLA would fold that, and has no code for what comes of it
    return to_weight.astype(weight.dtype), _sums(_by_columns(weight), slope, 1)[:-1].astype(x.dtype)


_tiles_turned.defvjp(_tiles_turned_forward, _tiles_turned_backward)


class RMSNorm(nnx.Module):
    """Root-mean-square norm over an axis, computed in float32 (Zhang and Sennrich, 2019)."""

    def __init__(self, size: int, config: ModelConfig, *, dtype: DTypeLike):
        self.weight = nnx.Param(jnp.full(size, 1.0 - config.norm_offset, dtype))
        self.eps = config.norm_eps
        self.offset = config.norm_offset

    def __call__(self, x: jax.Array, axis: int = 0) -> jax.Array:
        return rms_norm(self.weight[...], x, eps=self.eps, offset=self.offset, axis=axis)


def rms_norm(weight: jax.Array, x: jax.Array, *, eps: float, offset: float, axis: int = 0) -> jax.Array:
    """The norm as a function of its weight [X]; X is the size of `axis`."""
    x32 = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=axis, keepdims=True) + eps)
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    if offset:  # Gemma multiplies in float32, then casts
        return (x32 * inverse * (weight.astype(jnp.float32) + offset).reshape(shape)).astype(x.dtype)
    return weight.reshape(shape) * (x32 * inverse).astype(x.dtype)


def activation(name: str, x: jax.Array) -> jax.Array:
    """The feed-forward gate's non-linearity."""
    if name == "silu":
        return jax.nn.silu(x)
    return jax.nn.gelu(x, approximate=name == "gelu_tanh")


def rotate(x: Float[Array, "X H B T"], cos: Float[Array, "R B T"], sin: Float[Array, "R B T"]) -> jax.Array:
    """Rotary embedding of the first 2R features of each head, first half against second (Su et al., 2021)."""
    half = cos.shape[0]
    x32 = x.astype(jnp.float32)
    low, high, rest = x32[:, :half], x32[:, half : 2 * half], x[:, 2 * half :]
    turned = jnp.concatenate([low * cos[None] - high * sin[None], high * cos[None] + low * sin[None]], axis=1)
    turned = turned.astype(x.dtype)
    return turned if rest.shape[1] == 0 else jnp.concatenate([turned, rest], axis=1)


def softcap(x: jax.Array, cap: float | None) -> jax.Array:
    """Soft cap, cap * tanh(x / cap); x itself where there is no cap."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def rope_tables(
    positions: Int[Array, "B T"], inverse_frequencies: jax.Array, attention_factor: jax.Array | float
) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine [R, B, T] in float32, each times the factor.

    Inverse frequencies are [R], or [R, B, T] where they depend on the position, in radians a token.
    """
    if inverse_frequencies.ndim == 1:
        inverse_frequencies = inverse_frequencies[:, None, None]
    angles = inverse_frequencies * positions.astype(jnp.float32)[None]
    return jnp.cos(angles) * attention_factor, jnp.sin(angles) * attention_factor
