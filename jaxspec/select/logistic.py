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
    """How much better a source does in a row than its model says, as log-odds; learnt as weights are, and forgotten."""

    bias: Float[Array, "B N"]
    slopes: Float[Array, "B N"]


def fresh(weights: Float[Array, "N F"]) -> Model:
    """A model that begins with these weights."""
    return Model(weights, jnp.ones_like(weights))


def no_lean(rows: int, sources: int) -> Lean:
    """No row is special."""
    return Lean(jnp.zeros((rows, sources), jnp.float32), jnp.ones((rows, sources), jnp.float32))


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
    steep = lean.slopes + jnp.sum(miss**2, -1)
    touched = jnp.any(known, -1)
    bias = jnp.where(touched, KEEP * lean.bias, lean.bias) - RATE * jnp.sum(miss, -1) * jax.lax.rsqrt(steep)
    return fresh_model, Lean(bias, jnp.where(touched, jnp.maximum(KEEP * steep, 1.0), steep))


KEEP = 0.98
"""What a row's lean keeps over a round that says something of its source: about fifty rounds count."""


__all__ = ["Lean", "Model", "fresh", "learn", "no_lean", "predict"]
