"""Drafts of every kind with random weights, for the tests' tiny target; what trains and what drafts share them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.checkpoint.artifact import IDS, shared, stored_shapes
from jaxspec.models.heads import DraftConfig, draft_body
from tests.decode import tiny

KINDS = ("medusa", "feature", "exit", "lm")

TARGET = dataclasses.replace(tiny.TARGET, num_layers=3)


@functools.cache
def target():
    """(model, parameters) of three layers."""
    return tiny.model_of(TARGET, 0, 1.6)


def ids_of(size: int) -> np.ndarray:
    """A reduced vocabulary."""
    return np.sort(np.random.default_rng(5).permutation(tiny.VOCAB)[:size]).astype(np.int32)


def draft_of(kind: str, *, vocab: int = 20, seed: int = 1) -> tuple[DraftConfig, dict[str, jax.Array]]:
    """A config and parameters of its own that say something at every depth."""
    sizes = {
        "medusa": {"taps": (3,), "heads": 3},
        "feature": {"taps": (1, 3)},
        "exit": {"layers": 2, "rank": 4},
        "lm": {"layers": 1},
    }[kind]
    body = dataclasses.replace(draft_body(TARGET, 1), attention_softcap=5.0)
    config = DraftConfig(kind, body, vocab, **sizes)
    rng = np.random.default_rng(seed)
    own = {}
    for name, shape in stored_shapes(config).items():
        value = rng.standard_normal(shape) * (shape[-1] ** -0.5 if len(shape) > 1 else 0.3)
        own[name] = jnp.asarray(value + ("norm" in name), jnp.float32)
    return config, own | {IDS: jnp.asarray(ids_of(vocab))}


def context_of(config: DraftConfig, own: dict[str, jax.Array], *, temperature: float = 1.0) -> dict[str, jax.Array]:
    """What a draft takes from the target, and its temperature."""
    return shared(config, own, target()[1]) | {"temperature": jnp.float32(temperature)}


def trainable(own: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Parameters without the vocabulary."""
    return {name: leaf for name, leaf in own.items() if name != IDS}
