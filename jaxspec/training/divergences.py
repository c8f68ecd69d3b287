"""How far a draft's law q is from the target's p, where of p the likeliest tokens and the mass of the rest are known.

A position's outcomes are these K tokens, each one, and the tail, all others together. Both laws are brought to this
coarser form, which a divergence can only make smaller; with K = V it is the law itself.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

TINY = 1e-8

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
) -> tuple[Float[Array, "*N O"], Float[Array, "*N O"]]:
    """p and q over (the K tokens, the tail), O = K + 1.

    A token that the draft cannot say counts for neither: p is taken given that it says something that the draft can,
    which is what the draft should learn.

    Args:
        ids, log_p: the target's K likeliest tokens and their log-probabilities.
        logits: the draft's, over its own Q tokens.
        inverse: place of every token of the target among the draft's; Q where it has none.
        temperature: both laws are taken at this temperature; p's tail is then treated as one token.
    """
    size = logits.shape[-1]
    at = jnp.take(inverse, ids, mode="clip")
    known = at < size
    log_p = log_p.astype(jnp.float32)
    tail = jnp.log(jnp.maximum(1.0 - jnp.sum(jnp.exp(log_p), -1, keepdims=True), TINY))
    outcomes = jnp.concatenate([jnp.where(known, log_p, -jnp.inf), tail], -1) / temperature
    p = jax.nn.softmax(outcomes, axis=-1)
    logits = logits / temperature
    said = jnp.take_along_axis(logits, jnp.minimum(at, size - 1), axis=-1)
    q = jnp.where(known, jnp.exp(said - jax.nn.logsumexp(logits, axis=-1, keepdims=True)), 0.0)
    return p, jnp.concatenate([q, jnp.maximum(1.0 - jnp.sum(q, -1, keepdims=True), 0.0)], -1)


def cross_entropy(
    tokens: Int[Array, "*N"], logits: Float[Array, "*N Q"], inverse: Int[Array, "V"]
) -> Float[Array, "*N"]:
    """-log q of the token that came, in nats; 0 where the draft cannot say it."""
    at = jnp.take(inverse, tokens, mode="clip")
    known = at < logits.shape[-1]
    said = jnp.take_along_axis(logits, jnp.minimum(at, logits.shape[-1] - 1)[..., None], axis=-1)[..., 0]
    return jnp.where(known, jax.nn.logsumexp(logits, axis=-1) - said, 0.0)


def _log(law: jax.Array) -> jax.Array:
    return jnp.log(jnp.maximum(law, TINY))
