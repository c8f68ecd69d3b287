"""What the engine asks of a model: four pure functions, so that anyone's Flax model can be plugged in."""

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxspec.cache import Window, commit, for_reading, init_cache
from jaxspec.models.config import ModelConfig
from jaxspec.models.decoder import Decoder
from jaxspec.typing import Params, PyTree


class Output(NamedTuple):
    """One forward pass over a window."""

    logits: Any  # [B, T, V] float32; None where they were not asked for
    hidden: jax.Array  # [B, T, D] residual stream after the last layer that ran, before the final norm
    window: PyTree  # the window's keys and values, for `commit` or as the next pass's `carried`


class Forward(Protocol):
    """Run a window; pure, reads the cache only.

    Args:
        params: the model's parameters.
        tokens: [B, T] int32.
        positions: [B, T] int32, absolute.
        mask: [B, T, C+T] bool, which carried and own tokens each one attends to; the cache is masked by its length.
        cache: committed keys and values.
        carried: a window of C earlier tokens of this round.
        layers: run only layers [start, stop); a model without parts may refuse.
        hidden: [B, T, D], where to start from instead of the tokens' embeddings.
        logits: whether they are wanted.
    """

    def __call__(
        self,
        params: Params,
        tokens: jax.Array,
        positions: jax.Array,
        mask: jax.Array,
        cache: PyTree,
        carried: PyTree | None = None,
        *,
        layers: tuple[int, int] | None = None,
        hidden: jax.Array | None = None,
        logits: bool = True,
    ) -> Output: ...


class LanguageModel(NamedTuple):
    """A model as the engine sees it. Static: hashed by identity of its functions, so bind once and keep it."""

    config: PyTree  # hashable; the engine reads vocab_size and max_positions
    init_cache: "InitCache"  # (rows, capacity, *, headroom, dtype) -> cache
    forward: Forward
    commit: "Commit"  # (cache, window, path [B,P] | None, count [B]) -> cache


class InitCache(Protocol):
    """Empty cache for rows x capacity tokens; at most `headroom` tokens are committed at once."""

    def __call__(self, rows: int, capacity: int, *, headroom: int, dtype: DTypeLike = ...) -> PyTree: ...


class Commit(Protocol):
    """Append window entries path[:, :count] of each row; path None is the window's own order."""

    def __call__(self, cache: PyTree, window: PyTree, path: jax.Array | None, count: jax.Array) -> PyTree: ...


@functools.lru_cache(maxsize=64)
def language_model(config: ModelConfig) -> LanguageModel:
    """The pure functions of a config; the same object for the same config, so that nothing compiles twice."""
    graph, state = nnx.split(_abstract(config, jnp.float32), nnx.Param)
    paths = {".".join(map(str, path)): path for path, _ in nnx.to_flat_state(state)}

    def forward(
        params: Params,
        tokens: jax.Array,
        positions: jax.Array,
        mask: jax.Array,
        cache: PyTree,
        carried: PyTree | None = None,
        *,
        layers: tuple[int, int] | None = None,
        hidden: jax.Array | None = None,
        logits: bool = True,
    ) -> Output:
        flat = [(path, nnx.Param(params[name])) for name, path in paths.items()]
        module = nnx.merge(graph, nnx.from_flat_state(flat))
        start, stop = layers or (0, config.num_layers)
        x = module.embed(tokens) if hidden is None else hidden.transpose(2, 0, 1)
        x, window = module(x, positions, mask, for_reading(cache), carried, start, stop)
        return Output(module.head(x) if logits else None, x.transpose(1, 2, 0), window)

    def empty(rows: int, capacity: int, *, headroom: int, dtype: DTypeLike = jnp.float32) -> PyTree:
        windows = tuple(config.window(i) for i in range(config.num_layers))
        sizes = {"kv_heads": config.num_kv_heads, "head_dim": config.head_dim}
        return init_cache(rows, capacity, **sizes, windows=windows, headroom=headroom, dtype=dtype)

    return LanguageModel(config, empty, forward, commit)


def bind(module: Decoder) -> tuple[LanguageModel, Params]:
    """Split an NNX decoder once into pure functions and a flat dict of its parameters (`nnx.Param` only)."""
    state = nnx.state(module, nnx.Param)
    params = {".".join(map(str, path)): leaf[...] for path, leaf in nnx.to_flat_state(state)}
    return language_model(module.config), params


def parameter_shapes(config: ModelConfig, dtype: DTypeLike = jnp.float32) -> dict[str, jax.ShapeDtypeStruct]:
    """Name, shape and dtype of every parameter of a config, without allocating any."""
    flat = nnx.to_flat_state(nnx.state(_abstract(config, dtype), nnx.Param))
    return {".".join(map(str, path)): jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for path, leaf in flat}


def _abstract(config: ModelConfig, dtype: DTypeLike) -> Decoder:
    """A decoder of shapes. One key for all: the counters of `nnx.Rngs` take time quadratic in the layers to trace."""

    def decoder() -> Decoder:
        key = jax.random.key(0)
        return Decoder(config, rngs=cast(nnx.Rngs, SimpleNamespace(params=lambda: key)), dtype=dtype)

    return nnx.eval_shape(decoder)


__all__ = [
    "Commit",
    "Forward",
    "InitCache",
    "LanguageModel",
    "Output",
    "Window",
    "bind",
    "language_model",
    "parameter_shapes",
]
