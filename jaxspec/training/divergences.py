"""How far a draft's law q is from the target's p, where of p the likeliest tokens and the mass of the rest are known.

A position's outcomes are these K tokens, each one, and the tail, all others together. Both laws are brought to this
coarser form, which a divergence can only make smaller; with K = V it is the law itself.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

TINY = 1e-8
"""Least mass of a tail: a sum of float32 probabilities is not known better."""

FLOOR = 1e-30
"""Under every probability's logarithm; a known token that the draft thinks hopeless still has a slope above it."""

Laws = Float[Array, "*N O"]


def forward_kl(p: Laws, q: Laws) -> Float[Array, "*N"]:
    """KL(p || q) in nats: q is drawn to cover all that p may say."""
    return jnp.sum(p * (_log(p) - _log(q)), axis=-1)


def reverse_kl(p: Laws, q: Laws) -> Float[Array, "*N"]:
    """KL(q || p) in nats: q is drawn to what p is sure of."""
    return jnp.sum(q * (_log(q) - _log(p)), axis=-1)


def jensen_shannon(p: Laws, q: Laws) -> Float[Array, "*N"]:
    """(KL(p || m) + KL(q || m)) / 2 with m the mean of p and q, in nats."""
    m = (p + q) / 2
    return (forward_kl(p, m) + forward_kl(q, m)) / 2


def total_variation(p: Laws, q: Laws) -> Float[Array, "*N"]:
    """Half the sum of |p - q|: the probability that a draft of q is rejected (Leviathan et al. 2023, theorem 3.5)."""
    return jnp.sum(jnp.abs(p - q), axis=-1) / 2


DIVERGENCES: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "kl": forward_kl,
    "reverse-kl": reverse_kl,
    "js": jensen_shannon,
    "tv": total_variation,
}


def divergence_named(name: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The function of a name.

    Raises:
        ValueError: an unknown name.
    """
    if name not in DIVERGENCES:
        raise ValueError(f"loss {name!r} is unknown; choose {', '.join(DIVERGENCES)}")
    return DIVERGENCES[name]


def coarse_laws(
    ids: Int[Array, "*N K"],
    log_p: Float[Array, "*N K"],
    logits: Float[Array, "*N Q"],
    inverse: Int[Array, "V"],
    *,
    temperature: float = 1.0,
    sayable: bool = True,
) -> tuple[Float[Array, "*N O"], Float[Array, "*N O"]]:
    """p and q over (the K tokens, the tail), O = K + 1.

    Args:
        ids, log_p: the target's K likeliest tokens and their log-probabilities.
        logits: the draft's, over its own Q tokens.
        inverse: place of every token of the target among the draft's; Q where it has none.
        temperature: both laws are taken at this temperature. What p's tail becomes depends on how it lies among its
            tokens, which was not kept: as q's does, so that a draft that equals the target is at distance 0.
        sayable: p given that the target says something that the draft can, which is what the draft should learn; where
            False p itself, of which the draft misses what it cannot say.
    """
    at = jnp.take(inverse, ids, mode="clip")
    known = at < logits.shape[-1]
    log_p = log_p.astype(jnp.float32)
    tail = jnp.log(_rest(jnp.exp(log_p)))
    q, log_sum = _said(logits / temperature, at, known)
    if temperature != 1:
        plain, plain_sum = _said(logits, at, known)
        spread = log_sum + jnp.log(q[..., -1:]) - (plain_sum + jnp.log(plain[..., -1:])) / temperature
        tail = tail / temperature + jax.lax.stop_gradient(spread)
    outcomes = jnp.where(known, log_p, -jnp.inf) if sayable else log_p
    return jax.nn.softmax(jnp.concatenate([outcomes / temperature, tail], -1), axis=-1), q


def _said(logits: jax.Array, at: jax.Array, known: jax.Array) -> tuple[jax.Array, jax.Array]:
    """q over (the tokens at `at`, the rest), and the logarithm of the sum that it is divided by."""
    log_sum = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    said = jnp.take_along_axis(logits, jnp.minimum(at, logits.shape[-1] - 1), axis=-1)
    q = jnp.where(known, jnp.exp(said - log_sum), 0.0)
    return jnp.concatenate([q, _rest(q)], -1), log_sum


def _rest(law: jax.Array) -> jax.Array:
    """What probabilities leave, at least TINY."""
    return jnp.maximum(1.0 - jnp.sum(law, -1, keepdims=True), TINY)


def cross_entropy(
    tokens: Int[Array, "*N"], logits: Float[Array, "*N Q"], inverse: Int[Array, "V"]
) -> Float[Array, "*N"]:
    """-log q of the token that came, in nats; 0 where the draft cannot say it."""
    at = jnp.take(inverse, tokens, mode="clip")
    known = at < logits.shape[-1]
    said = jnp.take_along_axis(logits, jnp.minimum(at, logits.shape[-1] - 1)[..., None], axis=-1)[..., 0]
    return jnp.where(known, jax.nn.logsumexp(logits, axis=-1) - said, 0.0)


def _log(law: jax.Array) -> jax.Array:
    return jnp.log(jnp.maximum(law, FLOOR))
