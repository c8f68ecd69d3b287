"""What weights, caches and the rest take on each device of a mesh, by the engine's own shapes and shardings."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding
from jax.typing import DTypeLike

from jaxspec import decode, sharding
from jaxspec.bench import compile_drafts
from jaxspec.bench.advise_models import Candidate, Model, Shapes, shapes_of
from jaxspec.buckets import PREFILL
from jaxspec.cache import init_cache
from jaxspec.checkpoint.artifact import stored_shapes
from jaxspec.drafts.ngram import ngram
from jaxspec.models import LanguageModel, ModelConfig
from jaxspec.models.heads import DraftConfig
from jaxspec.typing import PyTree

KEYS_VALUES = ("k", "v")


@dataclasses.dataclass(frozen=True)
class Layout:
    """How an engine would lie on its devices."""

    rows: int
    context: int  # tokens a row's buffers hold
    dtype: str  # of weights and caches
    data: int = 1
    model: int = 1
    shard_drafts: bool = False  # split model drafts as the target is, not whole on every device
    lookahead: int = decode.DEFAULT_LOOKAHEAD

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return jnp.dtype(self.dtype).itemsize

    @property
    def rows_on_device(self) -> int:
        """Rows of each device; all of them where they do not divide."""
        return self.rows // self.data if self.rows % self.data == 0 else self.rows

    @property
    def devices(self) -> int:
        """Devices of the mesh."""
        return self.data * self.model


class Held(NamedTuple):
    """Bytes on one device; caches are None where they are not known."""

    target: float
    caches: float | None
    drafts: float
    draft_caches: float | None
    other: float  # tokens, counters, and what drafts remember besides caches

    @property
    def total(self) -> float:
        """In all, of what is known."""
        return sum(each for each in self if each is not None)


class Parts(NamedTuple):
    """What of a model lies on one device."""

    weights: Mapping[str, tuple[int, ...]]  # shape by name
    keys: tuple[tuple[int, ...], ...]  # shape [B, K, S, H] of each layer's keys, which is that of its values


def held(target: Model, draft: Candidate | None, layout: Layout) -> Held:
    """Bytes on one device of a target with one draft source, or with none."""
    drafts = 0.0 if draft is None else draft_weights(target, draft, layout)
    sized = draft is not None and draft.model is not None and draft.model.config is None
    if target.config is None:
        whole = draft is not None and not sized and draft.kind == "model"
        own = None if sized or whole else 0.0
        return Held(target.count * layout.itemsize / layout.model, None, drafts, own, 0.0)
    counted = {"caches": 0.0, "draft_caches": 0.0, "other": 0.0}
    for path, nbytes in _state(target, None if sized else draft, layout):
        names = [str(getattr(key, "name", "")) for key in path]
        caches = {"cache": "caches", "sources": "draft_caches"} if names[-1] in KEYS_VALUES else {}
        counted[caches.get(names[0], "other")] += nbytes
    own = None if sized else counted["draft_caches"]
    weights = float(numbers(target_parts(target.config, layout).weights) * layout.itemsize)
    return Held(weights, counted["caches"], drafts, own, counted["other"])


def numbers(weights: Mapping[str, tuple[int, ...]]) -> int:
    """How many there are in some parameters."""
    return sum(math.prod(shape) for shape in weights.values())


@functools.lru_cache(maxsize=64)
def target_parts(config: ModelConfig, layout: Layout) -> Parts:
    """The target's on one device."""
    return _parts(config, layout, sharding.CACHE, split=True)


@functools.lru_cache(maxsize=64)
def draft_parts(config: ModelConfig, layout: Layout) -> Parts:
    """A model draft's on one device: whole, or split as the target is; its caches are split by their rows alone."""
    return _parts(config, layout, sharding.CACHE[:1], split=layout.shard_drafts)


def _parts(config: ModelConfig, layout: Layout, cache_axes: tuple[str, ...], *, split: bool) -> Parts:
    mesh = _mesh(layout)
    shapes = shapes_of(config, layout.dtype)
    places = sharding.param_shardings(shapes, mesh, head_dim=config.head_dim)
    weights = {name: places[name].shard_shape(leaf.shape) if split else leaf.shape for name, leaf in shapes.items()}
    empty = lambda: light(config).init_cache(layout.rows, layout.context, headroom=headroom(layout))  # noqa: E731
    keys = [layer.k.shape for layer in jax.eval_shape(empty).layers]
    cut = [
        NamedSharding(mesh, sharding.partition(cache_axes, shape[: len(cache_axes)], mesh)).shard_shape(shape)
        for shape in keys
    ]
    return Parts(weights, tuple(cut))


def draft_weights(target: Model, draft: Candidate, layout: Layout) -> float:
    """Bytes of a draft's own parameters on one device."""
    if draft.model is not None and draft.model.config is None:
        return draft.model.count * layout.itemsize / (layout.model if layout.shard_drafts else 1)
    if draft.model is not None and draft.model.config is not None:
        return float(numbers(draft_parts(draft.model.config, layout).weights) * layout.itemsize)
    if draft.kind == "ngram":
        return _bytes(compile_drafts.table().shapes) if "mb" not in draft.card else draft.card["mb"] * 1e6
    if draft.trained is None:
        return 0.0
    shapes = trained_shapes(target, draft.trained, layout)
    lent = (
        set() if layout.devices > 1 else _lent(draft.trained)
    )  # a mesh holds it whole, the target's it holds in parts
    return _bytes({name: leaf for name, leaf in shapes.items() if name not in lent})


def trained_shapes(target: Model, config: DraftConfig, layout: Layout) -> Shapes:
    """A trained draft's parameters, with what it shares with its target."""
    assert target.config is not None
    return compile_drafts.attached(config, shapes_of(target.config, layout.dtype), jnp.dtype(layout.dtype))


def _lent(config: DraftConfig) -> set[str]:
    """Arrays that are the target's own, where both are on one device."""
    whole = config.vocab == config.body.vocab_size and not config.own_output
    lent = {"embed_tokens.weight", *(["output.weight"] if whole else [])}
    return lent - set(stored_shapes(config))


def headroom(layout: Layout) -> int:
    """The widest window that is committed at once, in tokens."""
    return max(PREFILL[-1], layout.lookahead + 1)


def light(config: ModelConfig) -> LanguageModel:
    """A model of which only config and cache are asked, since building the rest of a large one takes seconds."""

    def empty(rows: int, capacity: int, *, headroom: int, dtype: DTypeLike = jnp.float32) -> PyTree:
        sizes = {"kv_heads": config.num_kv_heads, "head_dim": config.head_dim}
        windows = tuple(config.window(layer) for layer in range(config.num_layers))
        return init_cache(rows, capacity, **sizes, windows=windows, headroom=headroom, dtype=dtype)

    def never(*inputs: Any, **options: Any) -> Any:
        raise AssertionError("this model has shapes alone")

    return LanguageModel(config, empty, never, never)


def _state(target: Model, draft: Candidate | None, layout: Layout) -> Iterator[tuple[Any, int]]:
    """Path and bytes on one device of every array of the engine's state."""
    assert target.config is not None
    drafts = [] if draft is None else [_source(draft, layout)]
    setup = decode.make_setup(light(target.config), drafts=drafts, verify="coupled", lookahead=layout.lookahead)
    most = max(1, min(layout.context, target.config.max_positions) - setup.windows[-1] - 1)
    request = decode.make_request(setup, [[0]] * layout.rows, max_new_tokens=most, seed=0)
    tokens = jax.ShapeDtypeStruct((layout.rows, layout.context), jnp.int32)
    begin = functools.partial(decode.init_state, setup, headroom=headroom(layout), dtype=jnp.dtype(layout.dtype))
    state = jax.eval_shape(begin, tokens, request)
    places = jax.tree.leaves(sharding.state_shardings(state, _mesh(layout)))
    for (path, leaf), place in zip(jax.tree_util.tree_flatten_with_path(state)[0], places, strict=True):
        yield path, math.prod(place.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def _source(draft: Candidate, layout: Layout) -> Any:
    """A source as `make_setup` takes it."""
    if draft.model is not None:
        assert draft.model.config is not None
        return draft.source, light(draft.model.config)
    if draft.kind == "ngram":
        return ngram(name=draft.source, lookahead=layout.lookahead)
    return draft.source if draft.trained is None else (draft.source, draft.trained)


def _mesh(layout: Layout) -> AbstractMesh:
    return sharding.abstract_mesh({sharding.DATA: layout.data, sharding.MODEL: layout.model})


def _bytes(shapes: PyTree) -> float:
    return float(sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes)))
