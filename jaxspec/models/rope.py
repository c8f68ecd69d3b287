"""Rotary frequencies of a config, stretched as its scaling says (transformers' modeling_rope_utils, in float32).

Two scalings depend on the length of the sequence: dynamic grows the base with it, longrope changes from one set of
factors to another beyond the trained context. transformers takes the length from the pass: the largest position in it
plus one. One pass over a text and a pass for every token then give different keys beyond the trained context, and so
would windows with padding or rejected drafts. Here a key may depend on nothing but its prefix, so by default a token
at position i rotates as in a sequence of i + 1 tokens: any split into windows gives the same, and it is what
transformers gives token by token. Up to the trained context all of these agree.

`for_length` instead fixes the length for the whole sequence, as transformers does in one pass over that many tokens
(and in `generate` with Phi-3, which starts its cache anew at the change of factors). Beyond the trained context of a
longrope model use it: queries of one set of factors do not fit keys of the other.
"""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxspec.models.config import ModelConfig, RopeScaling
from jaxspec.models.limits import check_integer

Frequencies = NDArray[np.float32]


def frequencies(config: ModelConfig, positions: jax.Array, *, local: bool) -> tuple[jax.Array, float]:
    """Inverse frequencies in radians a token and the factor on cos and sin.

    Frequencies are [R], or [R, B, T] where they depend on the position.

    Args:
        positions: [B, T] absolute positions.
        local: the sliding-window layers of a family with its own base for them, which no scaling touches.
    """
    if local and config.rope_local_theta is not None:
        return jnp.asarray(1.0 / _wavelengths(config.rope_local_theta, config.rotary_dim)), 1.0
    scaling, plain = config.rope_scaling, 1.0 / _wavelengths(config.rope_theta, config.rotary_dim)
    if scaling.kind == "dynamic":
        return _dynamic(config, plain, positions), 1.0
    if scaling.kind == "longrope":
        return _longrope(config, positions), attention_factor(scaling)
    return jnp.asarray(_stretched(config, plain)), attention_factor(scaling)


def for_length(config: ModelConfig, length: int) -> ModelConfig:
    """The config whose frequencies are those of a sequence of `length` tokens throughout.

    It is the same config, and so the same compiled program, where the scaling does not depend on the length or `length`
    is within the trained context.

    Raises:
        ValueError: a length below 1 or absurdly large.
    """
    check_integer("length", length, 1, 2**30)
    scaling = config.rope_scaling
    trained = {"dynamic": config.max_positions, "longrope": scaling.original_max_positions}
    if length <= trained.get(scaling.kind, length):
        return dataclasses.replace(config, rope_scaling=dataclasses.replace(scaling, length=0))
    if scaling.kind == "longrope":
        length = trained["longrope"] + 1  # all lengths beyond the trained context are alike
    return dataclasses.replace(config, rope_scaling=dataclasses.replace(scaling, length=length))


def attention_factor(scaling: RopeScaling) -> float:
    """Factor on cos and sin, derived from the other fields where it is not given (YaRN, arXiv:2309.00071; LongRoPE)."""
    if scaling.attention_factor is not None:
        return float(scaling.attention_factor)
    if scaling.factor <= 1.0 or scaling.kind not in ("yarn", "longrope"):
        return 1.0
    grown = math.log(scaling.factor)
    if scaling.kind == "longrope":
        return math.sqrt(1.0 + grown / math.log(scaling.original_max_positions))
    if scaling.mscale and scaling.mscale_all_dim:
        return (0.1 * scaling.mscale * grown + 1.0) / (0.1 * scaling.mscale_all_dim * grown + 1.0)
    return 0.1 * grown + 1.0


def _wavelengths(theta: float, size: int) -> Frequencies:
    """Tokens a radian: theta ** (2 r / size) for r = 0 .. size/2 - 1."""
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    return np.power(np.float64(np.float32(theta)), exponents.astype(np.float64)).astype(np.float32)


def _stretched(config: ModelConfig, plain: Frequencies) -> Frequencies:
    """Scalings that depend on neither length nor position."""
    scaling = config.rope_scaling
    if scaling.kind == "linear":
        return plain / np.float32(scaling.factor)
    if scaling.kind == "llama3":
        return _llama3(scaling, plain)
    if scaling.kind == "yarn":
        return _yarn(config, plain)
    return plain


def _llama3(scaling: RopeScaling, plain: Frequencies) -> Frequencies:
    """Short wavelengths stay, long ones stretch by the factor, those between are blended (Llama 3.1)."""
    trained, low, high = scaling.original_max_positions, scaling.low_freq_factor, scaling.high_freq_factor
    wavelength = np.float32(2 * math.pi) / plain
    long, short = wavelength > np.float32(trained / low), wavelength < np.float32(trained / high)
    if low == high:
        return np.where(long, plain / np.float32(scaling.factor), plain)
    keep = (np.float32(trained) / wavelength - np.float32(low)) / np.float32(high - low)
    blend = (1 - keep) * plain / np.float32(scaling.factor) + keep * plain
    return np.where(long, plain / np.float32(scaling.factor), np.where(short, plain, blend))


def _yarn(config: ModelConfig, plain: Frequencies) -> Frequencies:
    """Interpolated below beta_slow turns over the trained context, kept above beta_fast, a ramp between."""
    scaling, size = config.rope_scaling, config.rotary_dim

    def feature(turns: float) -> float:
        trained = scaling.original_max_positions
        return size * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(config.rope_theta))

    low, high = feature(scaling.beta_fast), feature(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    width = np.float32(0.001 if low == high else high - low)
    ramp = np.clip((np.arange(size // 2) - low) / width, 0, 1).astype(np.float32)
    stretched = np.float32(1) / (np.float32(scaling.factor) * _wavelengths(config.rope_theta, size))
    return (stretched * ramp + plain * (1 - ramp)).astype(np.float32)


def _dynamic(config: ModelConfig, plain: Frequencies, positions: jax.Array) -> jax.Array:
    """NTK scaling: the base grows so that the longest wavelength stretches with the sequence.

    (theta * g) ** (-2r / size) with g = (factor * n / max - factor + 1) ** (size / (size - 2)), written as plain
    frequencies times g ** (-2r / size), which loses no digits.
    """
    scaling, size = config.rope_scaling, config.rotary_dim
    # -2r / size * size / (size - 2) = -2r / (size - 2)
    exponents = -np.arange(0, size, 2, dtype=np.float32) / np.float32(size - 2)
    if scaling.length:
        grown = max(scaling.length, config.max_positions) / config.max_positions
        return jnp.asarray(plain * np.float32(scaling.factor * grown - (scaling.factor - 1)) ** exponents)
    length = jnp.maximum(positions + 1, config.max_positions).astype(jnp.float32)
    growth = jnp.float32(scaling.factor / config.max_positions) * length - jnp.float32(scaling.factor - 1)
    return jnp.asarray(plain)[:, None, None] * jnp.exp(exponents[:, None, None] * jnp.log(growth)[None])


def _longrope(config: ModelConfig, positions: jax.Array) -> jax.Array:
    """Each frequency divided by its own factor: one set within the trained context, another beyond it.

    A GGUF's rope_freqs are such factors, the same in both sets.
    """
    scaling, waves = config.rope_scaling, _wavelengths(config.rope_theta, config.rotary_dim)
    short, long = (1.0 / (_array(factors) * waves) for factors in (scaling.short_factor, scaling.long_factor))
    if scaling.length or scaling.short_factor == scaling.long_factor:
        return jnp.asarray(long if scaling.length > scaling.original_max_positions else short)
    beyond = positions + 1 > scaling.original_max_positions
    return jnp.where(beyond[None], long[:, None, None], short[:, None, None])


def _array(values: Sequence[float]) -> Frequencies:
    return np.asarray(values, np.float32)
