"""Noise that is a function of row seed, absolute position and purpose alone: not of batch, slot or width."""

import enum

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, UInt32

from jaxspec.typing import Positions, Seeds


class Purpose(enum.IntEnum):
    """What the noise at a position is for; different purposes are independent."""

    TARGET = 0  # the token that plain decoding draws, the bonus, and all of coupled verification
    ACCEPT = 1  # the uniform that a draft is judged by
    RESIDUAL = 2  # the token that replaces a rejected draft
    DRAFT = 3  # a sampled draft


def gumbel(
    seed: Seeds,
    positions: Positions,
    vocab: int,
    *,
    purpose: int | Int[Array, "B T"] = Purpose.TARGET,
    start: Int[Array, "B"] | None = None,
) -> Float[Array, "B T V"]:
    """Standard Gumbel noise for the token at each absolute position; float32, finite.

    A larger `vocab` adds values and changes none. `start`, the row's known length when a round began, gives noise of
    that round's own. Sampled drafts for `rejection` need it: a rejected round's noise must not come back for the same
    position, since a choice of source or length made in between may have depended on it.
    """

    def draw(key: Key[Array, ""]) -> UInt32[Array, "V"]:
        return jax.random.bits(key, (vocab,), jnp.uint32)

    return to_gumbel(jax.vmap(jax.vmap(draw))(_keys(seed, positions, purpose, start)))


def uniform(seed: Seeds, positions: Positions, purpose: int | Int[Array, "B T"]) -> Float[Array, "B T"]:
    """Uniform noise in [0, 1) for each absolute position; float32 in steps of 2^-24."""

    def draw(key: Key[Array, ""]) -> UInt32[Array, ""]:
        return jax.random.bits(key, (), jnp.uint32)

    return to_uniform(jax.vmap(jax.vmap(draw))(_keys(seed, positions, purpose, None)))


def to_gumbel(bits: UInt32[Array, "..."]) -> Float[Array, "..."]:
    """Gumbel values -log(-log1p(-u)) of random bits, with u in steps of 2^-32; float32, finite.

    So fine, a token of probability 1e-9 is still drawn as often as it should be. With steps of 2^-23, which
    jax.random.gumbel has by default, a long flat tail loses its share.
    """
    u = (bits.astype(jnp.float32) + 0.5) * 2.0**-32
    return -jnp.log(-jnp.log1p(-jnp.minimum(u, 1 - 2.0**-24)))


def to_uniform(bits: UInt32[Array, "..."]) -> Float[Array, "..."]:
    """Values in [0, 1) of random bits, in steps of 2^-24; float32."""
    return (bits >> 8).astype(jnp.float32) * 2.0**-24


def _keys(
    seed: Seeds, positions: Positions, purpose: int | Int[Array, "B T"], start: Int[Array, "B"] | None
) -> Key[Array, "B T"]:
    """One key a position. The generator is named, so that a program's jax_default_prng_impl does not change outputs."""

    def key(seed: Array, position: Array, purpose: Array, start: Array | None) -> Key[Array, ""]:
        key = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), purpose)
        key = jax.random.fold_in(key, position)
        return key if start is None else jax.random.fold_in(key, start)

    purposes = jnp.broadcast_to(jnp.asarray(purpose, jnp.int32), positions.shape)
    across = jax.vmap(key, (None, 0, 0, None))
    return jax.vmap(across, (0, 0, 0, 0 if start is not None else None))(seed, positions, purposes, start)
