"""Where arrays live on a mesh: one table from logical to mesh axes, and the placements that follow from it.

The target is split over `model`, rows over `data`; draft models and the selector are replicated, so that every device
takes the same decisions. An axis that does not divide its mesh axis is replicated: key-value heads fewer than devices,
or a single row on a mesh with data=2, cost memory and time but no exactness.

                      data=2, model=4
    q_proj.weight     [N*H, D]       heads in 4 parts
    target's cache    [B, K, S, H]   rows in 2 parts, key-value heads in 4
    draft's cache     [B, K, S, H]   rows in 2 parts
"""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from jaxspec.typing import PyTree

DATA, MODEL = "data", "model"
MESH_AXES = (DATA, MODEL)

RULES: dict[str, str | None] = {
    "rows": DATA,
    "vocab": MODEL,
    "heads": MODEL,
    "kv_heads": MODEL,
    "feed_forward": MODEL,
    "width": None,
    "slots": None,
    "head": None,
}
"""Logical axis to mesh axis; the one place that decides."""

PARAMETERS: dict[str, tuple[str, ...]] = {
    "embed_tokens.weight": ("vocab", "width"),
    "lm_head.weight": ("vocab", "width"),
    "q_proj.weight": ("heads", "width"),
    "k_proj.weight": ("kv_heads", "width"),
    "v_proj.weight": ("kv_heads", "width"),
    "o_proj.weight": ("width", "heads"),
    "gate_proj.weight": ("feed_forward", "width"),
    "up_proj.weight": ("feed_forward", "width"),
    "down_proj.weight": ("width", "feed_forward"),
    "q_proj.bias": ("heads",),
    "k_proj.bias": ("kv_heads",),
    "v_proj.bias": ("kv_heads",),
    "gate_proj.bias": ("feed_forward",),
    "up_proj.bias": ("feed_forward",),
}
"""Logical axes of a parameter by the end of its name; others (norms, output biases, fused matrices) are replicated."""

CACHE = ("rows", "kv_heads", "slots", "head")

Value = TypeVar("Value")


def make_mesh(text: str, devices: Sequence[Any] | None = None) -> Mesh:
    """Mesh of a text such as "data=2,model=4"; an axis that is left out has size 1. Axis types are Auto.

    Args:
        devices: all of `jax.devices()` where None; as many as the sizes' product are needed.

    Raises:
        ValueError: an unknown or repeated axis, a size below 1, or a product that is not the number of devices.
    """
    sizes = mesh_sizes(text)
    found = jax.devices() if devices is None else devices
    wanted = math.prod(sizes.values())
    if wanted != len(found):
        raise ValueError(
            f"mesh {text!r} takes {wanted} devices and there are {len(found)}; make the sizes' product that"
        )
    return Mesh(np.array(found).reshape(*sizes.values()), MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def mesh_sizes(text: str) -> dict[str, int]:
    """Size of each axis, in the mesh's order.   "model=4" -> {"data": 1, "model": 4}

    Raises:
        ValueError: an unknown or repeated axis, or a size below 1.
    """
    sizes: dict[str, int] = dict.fromkeys(MESH_AXES, 1)
    seen: set[str] = set()
    for part in text.split(","):
        name, equals, size = (piece.strip() for piece in part.partition("="))
        if name not in MESH_AXES:
            raise ValueError(f"mesh {text!r} has axis {name!r}; the axes are data and model, as in data=1,model=4")
        if name in seen:
            raise ValueError(f"mesh {text!r} names axis {name} twice; name each axis once, as in data=1,model=4")
        if not equals or not size.isdecimal() or int(size) < 1:
            raise ValueError(f"mesh {text!r} gives axis {name} the size {size!r}; it must be a whole number from 1")
        seen.add(name)
        sizes[name] = int(size)
    return sizes


def abstract_mesh(sizes: Mapping[str, int]) -> AbstractMesh:
    """A mesh of no devices, by which shardings say what would lie on each."""
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def param_shardings(shapes: Mapping[str, Any], mesh: Mesh | AbstractMesh, *, head_dim: int) -> dict[str, NamedSharding]:
    """Sharding of every parameter of a tensor-parallel model, by its name.

    Args:
        shapes: name to array, ShapeDtypeStruct, or anything with a `shape`.
        head_dim: features of a head; heads are split whole or not at all.
    """

    def one(name: str, leaf: Any) -> NamedSharding:
        axes = PARAMETERS.get(".".join(name.split(".")[-2:]), ())
        sizes = zip(axes, leaf.shape, strict=False)
        counts = [size // head_dim if axis.endswith("heads") else size for axis, size in sizes]
        return NamedSharding(mesh, partition(axes, counts, mesh))

    return {name: one(name, leaf) for name, leaf in shapes.items()}


def partition(axes: Sequence[str], counts: Sequence[int], mesh: Mesh | AbstractMesh) -> PartitionSpec:
    """Mesh axis of each logical axis, None where its count does not divide; trailing Nones are left out."""
    names = [RULES[axis] for axis in axes]
    parts = [1 if name is None else mesh.shape[name] for name in names]
    # an axis of size 1 is left out as well: compiled programs return shardings without it
    fits = [part > 1 and count % part == 0 for part, count in zip(parts, counts, strict=True)]
    fit = [name if good else None for name, good in zip(names, fits, strict=True)]
    while fit and fit[-1] is None:
        fit.pop()
    return PartitionSpec(*fit)


def replicated(tree: PyTree, mesh: Mesh | AbstractMesh) -> PyTree:
    """A sharding for every leaf that puts all of it on every device: draft models, the selector's parameters."""
    return jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec()), tree)


def state_shardings(state: PyTree, mesh: Mesh | AbstractMesh) -> PyTree:
    """Sharding of every leaf of an engine's state.

    The target's cache by `CACHE`; every other array that starts with the rows by its rows, draft caches and counters
    included; the selector's state, the counter of widths and scalars are replicated.

    Args:
        state: a `decode.State`, of arrays or of shapes.
    """
    rows = state.length.shape[0]

    def one(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        names = [getattr(key, "name", None) for key in path]
        axes: tuple[str, ...] = ("rows",)
        if names[0] == "cache" and names[-1] in ("k", "v") and len(leaf.shape) == len(CACHE):
            axes = CACHE
        if not leaf.shape or leaf.shape[0] != rows or names[0] == "selector" or names[-1] == "widths":
            axes = ()
        return NamedSharding(mesh, partition(axes, leaf.shape[: len(axes)], mesh))

    return jax.tree_util.tree_map_with_path(one, state)


def place(state: Value, mesh: Mesh | None) -> Value:
    """A fresh state on its devices; as it is where there is no mesh."""
    return state if mesh is None else jax.device_put(state, state_shardings(state, mesh))


def constrain(state: Value, mesh: Mesh | None) -> Value:
    """`place` for inside a compiled function: a state leaves as it came in, so donation and the next call fit."""
    return state if mesh is None else jax.lax.with_sharding_constraint(state, state_shardings(state, mesh))


def within(mesh: Mesh | None) -> contextlib.AbstractContextManager[Any]:
    """Trace what is inside with `mesh` known to `by_rows`."""
    return contextlib.nullcontext() if mesh is None else jax.sharding.use_abstract_mesh(mesh.abstract_mesh)


def by_rows(function: Callable[..., Value], rows: int) -> Callable[..., Value]:
    """`function` run by each device on its own rows, where the mesh at hand spreads them; `function` itself elsewhere.

    For writes at row-dependent places, which the partitioner would otherwise let every device do for all rows.

    Args:
        function: of arrays that start with the rows, to arrays that do; it may not mix rows.
        rows: of all devices together.
    """
    mesh = jax.sharding.get_abstract_mesh()
    parts = mesh.shape.get(DATA, 1)
    if parts == 1 or rows % parts != 0:
        return function
    spec = PartitionSpec(DATA)
    return jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, axis_names={DATA})


def keep_whole(array: jax.Array, axis: int) -> jax.Array:
    """`array`, its key-value heads on every device where they do not divide the model axis of the mesh at hand.

    The partitioner would split them in part, as it splits the queries, and gather a whole cache to undo it.
    """
    parts = jax.sharding.get_abstract_mesh().shape.get(MODEL, 1)
    if array.shape[axis] % parts == 0:
        return array
    spec: list[Any] = [PartitionSpec.UNCONSTRAINED] * array.ndim
    spec[axis] = None
    return jax.lax.with_sharding_constraint(array, PartitionSpec(*spec))
