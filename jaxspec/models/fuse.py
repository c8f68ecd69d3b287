"""Matrices that read the same input, one upon the other: fewer and larger products for the same bytes of weights.

On CPUs every product costs tens of microseconds on top of reading its weights, and small ones do not fill the cores.
A model that is split over devices keeps them apart, since each device then holds a share of every one.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.models.config import ModelConfig
from jaxspec.typing import Params

Leaf = TypeVar("Leaf", jax.Array, np.ndarray)

FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}


def rows_of(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Rows of each part of a fused matrix, in their order."""
    kv = config.num_kv_heads * config.head_dim
    sizes = ((config.num_heads * config.head_dim, kv, kv), (config.intermediate_size,) * 2)
    return dict(zip(FUSED, sizes, strict=True))


def fuse(config: ModelConfig, params: Params) -> tuple[ModelConfig, Params]:
    """The same model with q, k, v and gate, up in one matrix each (biases likewise).

    Args:
        params: of the unfused model; emptied of what is fused as it goes, so that one layer at a time is held twice.

    Raises:
        ValueError: the model is fused already.
    """
    if config.fused:
        raise ValueError("the model is fused already; pass the parameters that were loaded")
    fused = {}
    for layer in range(config.num_layers):
        for whole, parts in FUSED.items():
            for kind in ("weight", "bias"):
                names = [f"layers.{layer}.{part}.{kind}" for part in parts]
                if names[0] in params:
                    fused[f"layers.{layer}.{whole}.{kind}"] = jnp.concatenate([params.pop(name) for name in names])
    return dataclasses.replace(config, fused=True), params | fused


def unfuse(config: ModelConfig, params: Mapping[str, Leaf]) -> tuple[ModelConfig, dict[str, Leaf]]:
    """The inverse of `fuse`, for jax and numpy arrays alike (numpy's share the fused arrays' memory).

    A model that is not fused is given back as it is.
    """
    if not config.fused:
        return config, dict(params)
    apart, sizes = {}, rows_of(config)
    for name, leaf in params.items():
        for whole, parts in FUSED.items():
            if f".{whole}." in name:
                rows = sizes[whole]
                stops = itertools.accumulate(rows)
                pieces = (leaf[stop - size : stop] for stop, size in zip(stops, rows, strict=True))
                apart |= {name.replace(whole, part): piece for part, piece in zip(parts, pieces, strict=True)}
                break
        else:
            apart[name] = leaf
    return dataclasses.replace(config, fused=False), apart
