"""Logistic regression that learns while it is used: one model for each source, and each row's own lean beside it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

RATE = 0.1
"""Step of AdaGrad; the first observation moves a weight by at most 0.07."""


class Model(NamedTuple):
    """Weights and the sums of their squared slopes (AdaGrad: Duchi, Hazan and Singer 2011), float32."""

    weights: Float[Array, "N F"]
    slopes: Float[Array, "N F"]


class Lean(NamedTuple):
    """How much better a source does in a row than its model says, as log-odds, and how that is being learnt."""

    bias: Float[Array, "B N"]
    slopes: Float[Array, "B N"]  # squared, older ones counting less: the steps do not die out
    miss: Float[Array, "B N"]  # smoothed misses, with their sign
    size: Float[Array, "B N"]  # and without


def fresh(weights: Float[Array, "N F"]) -> Model:
    """A model that begins with these weights."""
    return Model(weights, jnp.ones_like(weights))


def no_lean(rows: int, sources: int) -> Lean:
    """No row is special."""

    def full(value: float) -> Array:  # each a buffer of its own: the state is donated
        return jnp.full((rows, sources), value, jnp.float32)

    return Lean(full(0.0), full(1.0), full(0.0), full(0.0))


def predict(model: Model, lean: Lean, x: Float[Array, "B N A F"]) -> Float[Array, "B N A"]:
    """Chance of a yes."""
    return jax.nn.sigmoid(jnp.einsum("bnaf,nf->bna", x, model.weights) + lean.bias[..., None])


def learn(
    model: Model, lean: Lean, x: Float[Array, "B N A F"], said: Float[Array, "B N A"], known: Bool[Array, "B N A"]
) -> tuple[Model, Lean]:
    """One round more: every known observation pulls once, all rows together on the weights, each row on its lean.

    Args:
        said: what came of it, 0 to 1.
    """
    miss = jnp.where(known, predict(model, lean, x) - said, 0.0)
    pull, squares = jnp.einsum("bna,bnaf->nf", miss, x), jnp.einsum("bna,bnaf->nf", miss**2, x**2)
    slopes = model.slopes + squares
    fresh_model = Model(model.weights - RATE * pull * jax.lax.rsqrt(slopes), slopes)
    return fresh_model, _leant(lean, jnp.sum(miss, -1), jnp.sum(miss**2, -1), jnp.any(known, -1))


def _leant(lean: Lean, miss: Float[Array, "B N"], squares: Float[Array, "B N"], touched: Bool[Array, "B N"]) -> Lean:
    """The lean after a round: small steps where misses change their sign, large ones where all say the same.

    The share of the smoothed misses in their smoothed size is the tracking signal of Trigg and Leach (1967,
    "Exponential smoothing with an adaptive response rate"). A source that nothing was heard of slowly becomes again
    what its model says, so that one that has failed is tried again; each failure moves the model too, so the next try
    is longer in coming.
    """
    slopes = lean.slopes + squares
    smooth = SMOOTH * lean.miss + (1 - SMOOTH) * miss
    size = SMOOTH * lean.size + (1 - SMOOTH) * jnp.abs(miss)
    rate = RATE + (FASTEST - RATE) * (jnp.abs(smooth) / (size + 0.05)) ** 3
    bias = KEEP * lean.bias - rate * miss * jax.lax.rsqrt(slopes)
    moved = Lean(bias, jnp.maximum(KEEP_SLOPES * slopes, 1.0), smooth, size)
    return jax.tree.map(lambda new, old: jnp.where(touched, new, old), moved, lean._replace(bias=FADE * lean.bias))


FASTEST = 0.45
"""Step of a lean whose misses all say the same."""
SMOOTH = 0.9
"""What the smoothed misses keep: about ten rounds count."""
KEEP, KEEP_SLOPES = 0.995, 0.95
"""What a lean and its squared slopes keep over a round that says something of its source."""
FADE = 0.999
"""What a lean keeps over a round that says nothing."""


__all__ = ["Lean", "Model", "fresh", "learn", "no_lean", "predict"]
