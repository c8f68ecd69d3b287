"""Draft sources of a compile check: what each is in a setup, and the shapes of its parameters."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.checkpoint.artifact import shared, stored_shapes
from jaxspec.models import ModelConfig, language_model, parameter_shapes
from jaxspec.models.heads import KINDS, DraftConfig, default_taps, draft_body
from jaxspec.typing import PyTree

VOCAB, LM_LAYERS = 8192, 3
"""As `scripts/train_draft.py` makes them where nothing else is asked."""

CONTEXTS, SLOTS = 4, 8
"""Of a table of n-grams: the longest context, and the entries of a bucket."""

TABLE = {"check": "uint32", "next": "uint16", "count": "uint16", "hits": "uint16"}

BUCKETS = 100_000
"""An 8 MB table's."""


class Compiled(NamedTuple):
    """A source as the setup takes it, and its parameters' shapes (None without any)."""

    draft: Any
    shapes: PyTree


def trained(kind: str, target: ModelConfig, dtype: jnp.dtype) -> Compiled:
    """A trained draft of the default sizes."""
    config = default(kind, target)
    return Compiled((kind, config), attached(config, parameter_shapes(target, dtype), dtype))


def default(kind: str, target: ModelConfig) -> DraftConfig:
    """What `scripts/train_draft.py` makes of a target where nothing else is asked."""
    layers = {"lm": LM_LAYERS}.get(kind, 1)
    taps = {"feature": default_taps(target.num_layers), "medusa": (target.num_layers,)}.get(kind, ())
    read = max(1, round(target.num_layers * 0.4)) if kind == "exit" else layers
    return DraftConfig(kind, draft_body(target, layers), min(VOCAB, target.vocab_size), layers=read, taps=taps)


def attached(config: DraftConfig, target: PyTree, dtype: jnp.dtype) -> PyTree:
    """Shapes of a trained draft's parameters, with what it takes from its target's shapes."""
    floats = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in stored_shapes(config).items()}
    own = floats | {"output.ids": jax.ShapeDtypeStruct((config.vocab,), jnp.int32)}
    heat = {"temperature": jax.ShapeDtypeStruct((), jnp.float32)}
    return own | heat | jax.eval_shape(lambda own, whole: shared(config, own, whole), own, target)


def table() -> Compiled:
    """A table of n-grams."""
    entries = {name: jax.ShapeDtypeStruct((BUCKETS, SLOTS), jnp.dtype(kind)) for name, kind in TABLE.items()}
    return Compiled("ngram", entries | {"entries": jax.ShapeDtypeStruct((CONTEXTS,), jnp.uint32)})


def small(name: str, config: ModelConfig, target: ModelConfig, dtype: jnp.dtype) -> Compiled:
    """A model of the target's vocabulary.

    Raises:
        ValueError: of another one.
    """
    if config.vocab_size != target.vocab_size:
        sizes = f"{config.vocab_size} and {target.vocab_size}"
        raise ValueError(f"draft {name!r} and the target have vocabularies of {sizes}; give a draft of the target's")
    return Compiled((name, language_model(config)), parameter_shapes(config, dtype))


def source(
    name: str, target: ModelConfig, dtype: jnp.dtype, *, read: Callable[[str], ModelConfig], fused: bool
) -> Compiled:
    """What a name stands for.

    Args:
        read: config of a preset or file.
        fused: the layout of the matrices, `jaxspec.models.fuse`.
    """
    if name in KINDS:
        return trained(name, target, dtype)
    if name == "ngram":
        return table()
    if name.startswith("lm:"):
        return small(name, dataclasses.replace(read(name.removeprefix("lm:")), fused=fused), target, dtype)
    return Compiled(name, None)
