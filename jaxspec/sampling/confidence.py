"""A draft's confidence as a chance: its log-odds, what it has meant so far, and whether a chain is worth going on."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

ODDS = 4.0
"""Largest log-odds that count, either way; divided by it they are at most 1."""

NEXT = 0.8
"""Chance of a draft before its law is known, that the decision to draw it reckons with."""


def odds(chance: Float[Array, "..."]) -> Float[Array, "..."]:
    """Log-odds of a probability over ODDS, within -1 and 1; float32."""
    inside = jnp.clip(chance.astype(jnp.float32), 1e-6, 1 - 1e-6)
    return jnp.clip(jnp.log(inside) - jnp.log1p(-inside), -ODDS, ODDS) / ODDS


def trusted(
    confidence: Float[Array, "B A"], intercept: Float[Array, "B"], slope: Float[Array, "B"]
) -> Float[Array, "B A"]:
    """Chance that the target takes drafts of these confidences: the logistic of intercept + slope x `odds`.

    A slope of ODDS and no intercept believe the confidence as it is.
    """
    return jax.nn.sigmoid(intercept[:, None] + slope[:, None] * odds(confidence))


def goes_on(
    chain: Float[Array, "..."],
    tokens: Float[Array, "..."],
    drawn: Float[Array, "..."],
    base: Float[Array, "..."],
    step: Float[Array, "..."],
) -> Array:
    """Whether one more draft is expected to raise tokens per time.

    (tokens + chain NEXT) / (base + (drawn + 1) step)  >=  tokens / (base + drawn step)

    Args:
        chain: chance that all drafts so far are taken.
        tokens: that the round is expected to give with them.
        drawn: drafts so far.
        base, step: time of the round without drafts, and of each draft, its place in the window included.
    """
    return chain * NEXT * (base + drawn * step) >= tokens * step


__all__ = ["NEXT", "ODDS", "goes_on", "odds", "trusted"]
