"""The only code that knows where in a cache a token's keys and values lie.

A layer that attends globally keeps position i in slot i. A sliding-window layer of window w keeps position i in slot
i mod R of a ring of R = w + headroom slots, followed by `headroom` spill slots that are written and never read:

    R = 6, headroom = 2, write positions 5, 6:   slot   0 1 2 3 4 5 | 6 7
    one contiguous write at slot 5 ............................ 5 | 6
    then the spill is repeated at the front .... 6

Slots past a row's length hold rejected or padded entries; they are masked when read and overwritten later.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Shaped

from jaxspec.sharding import by_rows, keep_whole


class LayerCache(NamedTuple):
    """Committed keys and values of one layer."""

    k: Float[Array, "B K S H"]
    v: Float[Array, "B K S H"]


@dataclasses.dataclass(frozen=True)
class Cache:
    """Committed keys and values of a model, one array a layer (a stacked cache would be copied when sliced)."""

    layers: tuple[LayerCache, ...]
    length: Int[Array, "B"]  # committed tokens of each row
    rings: tuple[int | None, ...]  # static: each layer's ring size in slots, None where slot i holds position i


jax.tree_util.register_dataclass(Cache, data_fields=["layers", "length"], meta_fields=["rings"])


class Window(NamedTuple):
    """Keys and values of uncommitted tokens of this round, the same layers in the same order."""

    k: tuple[Float[Array, "B K T H"], ...]
    v: tuple[Float[Array, "B K T H"], ...]
    positions: Int[Array, "B T"]


def ring_size(window: int | None, capacity: int, headroom: int) -> int | None:
    """Slots of a layer's ring, or None where the layer keeps every position (no window, or a ring saves nothing)."""
    if window is None or window + 2 * headroom >= capacity:
        return None
    return window + headroom


def init_cache(
    rows: int,
    capacity: int,
    *,
    kv_heads: int,
    head_dim: int,
    windows: Sequence[int | None],
    headroom: int,
    dtype: DTypeLike,
) -> Cache:
    """Empty cache of `len(windows)` layers.

    Args:
        capacity: slots of a global layer; the last write must fit, so count the widest window in.
        windows: each layer's sliding window in tokens, None where it attends globally.
        headroom: widest window that will ever be committed at once, in tokens.
    """

    rings = tuple(ring_size(w, capacity, headroom) for w in windows)

    def layer(ring: int | None) -> LayerCache:
        slots = capacity if ring is None else ring + headroom
        shape = (rows, kv_heads, slots, head_dim)
        return LayerCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))

    return Cache(tuple(layer(ring) for ring in rings), jnp.zeros(rows, jnp.int32), rings)


def visible(
    length: Int[Array, "B"], positions: Int[Array, "B T"], slots: int, window: int | None, ring: int | None
) -> Bool[Array, "B T S"]:
    """Which committed slots each window token may attend to: inside the row's length, and inside the sliding window.

    A ring slot j holds the latest committed position congruent to j:  n - 1 - ((n - 1 - j) mod R).
    """
    j = jnp.arange(slots, dtype=jnp.int32)[None, :]
    last = length[:, None] - 1
    if ring is None:
        held = jnp.broadcast_to(j, (length.shape[0], slots))
        real = held <= last
    else:
        held = last - jnp.mod(last - j, ring)
        real = (held >= 0) & (j < ring)
    seen = jnp.broadcast_to(real[:, None, :], (*positions.shape, slots))
    if window is not None:
        seen = seen & (held[:, None, :] > positions[:, :, None] - window)
    return seen


def for_reading(cache: Cache) -> Cache:
    """The cache as a pass may read it on a mesh: what a pass splits further for itself stays as it was in the cache."""

    def keep(slots: jax.Array) -> jax.Array:
        kept = keep_whole(slots, 1)
        return slots if kept is slots else as_it_lies(kept)  # where it is needless, a pin makes the copies it prevents

    return dataclasses.replace(cache, layers=tuple(LayerCache(keep(each.k), keep(each.v)) for each in cache.layers))


def commit(cache: Cache, window: Window, path: Int[Array, "B P"] | None, count: Int[Array, "B"]) -> Cache:
    """Append each row's accepted path; the only write to a cache in a round.

    One `dynamic_update_slice` a row and array: in place on every backend, where a vmapped one becomes a loop over rows
    on TPU and a masked select rewrites the cache. All P entries are written, `count` of them count.

    Args:
        path: window indices to append, in order; entries at and beyond `count` may be anything valid. None: the window
            as it stands, a chain.
        count: accepted entries of each row, 0 leaves the row as it is.
    """

    def write(layers: tuple[LayerCache, ...], window: Window, path: jax.Array | None, length: jax.Array) -> tuple:
        each = zip(layers, window.k, window.v, cache.rings, strict=True)
        put = functools.partial(_write, path=path, length=length)
        return tuple(LayerCache(put(layer.k, k, ring=ring), put(layer.v, v, ring=ring)) for layer, k, v, ring in each)

    with jax.named_scope("commit"):
        layers = by_rows(write, len(cache.length))(cache.layers, window, path, cache.length)
    return Cache(layers, cache.length + count, cache.rings)


def _write(
    slots: jax.Array, fresh: jax.Array, *, path: jax.Array | None, length: jax.Array, ring: int | None
) -> jax.Array:
    """The window's entries along the path, of every row that this device holds."""
    if path is not None:
        fresh = jnp.take_along_axis(fresh, path[:, None, :, None], axis=2)
    fresh = keep_whole(fresh.astype(slots.dtype), 1)
    write = functools.partial(_write_rows, ring=ring)
    if slots.dtype.itemsize == 2:
        bits = functools.partial(_write_bits, ring=ring)
        return as_it_lies(jax.lax.platform_dependent(slots, fresh, length, cpu=bits, default=write))
    return as_it_lies(write(slots, fresh, length))


def _write_rows(slots: jax.Array, fresh: jax.Array, length: jax.Array, *, ring: int | None) -> jax.Array:
    for row in range(fresh.shape[0]):
        slots = _write_row(slots, fresh[row : row + 1], length[row], row, ring)
    return slots


def _write_bits(slots: jax.Array, fresh: jax.Array, length: jax.Array, *, ring: int | None) -> jax.Array:
    """The same for two-byte floats on a CPU, as integers and in a loop.

    As floats XLA's CPU backend turns the whole array into float32 and back for every row; as a chain of integer writes
    it joins them into one kernel whose time grows with the square of the rows.
    """
    bits = functools.partial(jax.lax.bitcast_convert_type, new_dtype=jnp.uint16)
    entries = bits(fresh)

    def write(row: jax.Array, slots: jax.Array) -> jax.Array:
        return _write_row(slots, jax.lax.dynamic_slice_in_dim(entries, row, 1), length[row], row, ring)

    return jax.lax.bitcast_convert_type(jax.lax.fori_loop(0, fresh.shape[0], write, bits(slots)), slots.dtype)


def as_it_lies(slots: Float[Array, "B K S H"]) -> Float[Array, "B K S H"]:
    """`slots` in the order in memory that the platform gives an argument; XLA would turn them in a loop, and copy.

    On a TPU heads of fewer than 128 features would be padded to as many; there the slots are innermost.
    """

    def pinned(slots: jax.Array, *, order: tuple[int, ...]) -> jax.Array:
        return with_layout_constraint(slots, Layout(major_to_minor=order))

    plain = functools.partial(pinned, order=(0, 1, 2, 3))
    tpu = plain if slots.shape[3] % 128 == 0 else functools.partial(pinned, order=(0, 1, 3, 2))
    return jax.lax.platform_dependent(slots, tpu=tpu, cuda=plain, default=lambda slots: slots)


def _write_row(
    slots: jax.Array, fresh: jax.Array, start: jax.Array, row: int | jax.Array, ring: int | None
) -> jax.Array:
    if ring is None:
        return jax.lax.dynamic_update_slice(slots, fresh, (row, 0, start, 0))
    width, spill = fresh.shape[2], slots.shape[2] - ring
    if width > spill:  # the write would be moved, and overwrite what the sliding window still needs
        raise ValueError(
            f"{width} tokens are committed at once to a cache made for {spill}; give init_cache that headroom"
        )
    start = jnp.mod(start, ring)
    slots = jax.lax.dynamic_update_slice(slots, fresh, (row, 0, start, 0))
    # entry t >= ring - start spilled past the ring: repeat it at slot t - (ring - start)
    front = jax.lax.dynamic_slice(slots, (row, 0, 0, 0), (1, slots.shape[1], width, slots.shape[3]))
    t = jnp.arange(width, dtype=jnp.int32) + (ring - start)
    wrapped = jnp.take(fresh, jnp.minimum(t, width - 1), axis=2)
    front = jnp.where((t < width)[None, None, :, None], wrapped, front)
    return jax.lax.dynamic_update_slice(slots, front, (row, 0, 0, 0))


def append(
    old: Shaped[Array, "B S"], fresh: Shaped[Array, "B A"], length: Int[Array, "B"], count: Int[Array, "B"]
) -> Shaped[Array, "B S"]:
    """`old` with each row's first `count` entries of `fresh` from its length on.

    length 4, fresh 7 8, count 2:   index - length   -4 -3 -2 -1  0  1  2
    """
    offset = jnp.arange(old.shape[1], dtype=jnp.int32)[None, :] - length[:, None]
    here = (offset >= 0) & (offset < count[:, None])
    at = jnp.clip(offset, 0, fresh.shape[1] - 1)
    return jnp.where(here, jnp.take_along_axis(fresh, at, axis=1), old)


def first_tokens(window: Window, width: int) -> Window:
    """The first `width` tokens of a window."""
    k, v = (tuple(leaf[:, :, :width] for leaf in leaves) for leaves in (window.k, window.v))
    return Window(k, v, window.positions[:, :width])


def join(lower: Window, upper: Window) -> Window:
    """One window from the first layers' and the other layers' of the same tokens."""
    return Window(lower.k + upper.k, lower.v + upper.v, upper.positions)


def layers_of_window(window: Window, start: int, stop: int) -> Window:
    """The layers `start` to `stop` of those that a window holds."""
    return Window(window.k[start:stop], window.v[start:stop], window.positions)
