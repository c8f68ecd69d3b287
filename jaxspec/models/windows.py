"""Widen, fill and cut a window's keys and values without knowing what a model keeps in it.

A model's window is opaque; the one thing that is known of a leaf is which axis counts tokens. It is the axis that
differs between the shapes of a pass over one token and a pass over two.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.typing import PyTree


def token_axes(narrow: PyTree, wide: PyTree) -> PyTree:
    """Token axis of every leaf, from the shapes of two windows of different width (arrays or ShapeDtypeStructs).

    Raises:
        ValueError: a leaf has none, or more than one, axis that grows with the width.
    """

    def axis(a: Any, b: Any) -> int:
        grown = [i for i, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)) if m != n]
        if len(grown) != 1:
            raise ValueError(
                f"a window leaf has shapes {a.shape} and {b.shape} for two widths; exactly one axis must count tokens, "
                "so let the model's forward return windows whose leaves have one token axis each"
            )
        return grown[0]

    return jax.tree.map(axis, narrow, wide)


def allocate(like: PyTree, axes: PyTree, width: int) -> PyTree:
    """Zeros shaped as `like`, with `width` tokens."""

    def zeros(leaf: Any, axis: int) -> jax.Array:
        shape = list(leaf.shape)
        shape[axis] = width
        return jnp.zeros(shape, leaf.dtype)

    return jax.tree.map(zeros, like, axes)


def place(into: PyTree, window: PyTree, axes: PyTree, at: jax.Array | int) -> PyTree:
    """`into` with the tokens of `window` from index `at` on; the tokens must fit."""

    def put(old: jax.Array, new: jax.Array, axis: int) -> jax.Array:
        return jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), at, axis)

    return jax.tree.map(put, into, window, axes)


def cut(window: PyTree, axes: PyTree, width: int) -> PyTree:
    """The first `width` tokens."""
    return jax.tree.map(lambda leaf, axis: jax.lax.slice_in_dim(leaf, 0, width, axis=axis), window, axes)


def pad(window: PyTree, axes: PyTree, width: int) -> PyTree:
    """`window` followed by zeros up to `width` tokens."""

    def widen(leaf: jax.Array, axis: int) -> jax.Array:
        sizes = [(0, 0)] * leaf.ndim
        sizes[axis] = (0, width - leaf.shape[axis])
        return jnp.pad(leaf, sizes)

    return jax.tree.map(widen, window, axes)


def in_branch(run: Callable[[], PyTree], wanted: jax.Array) -> PyTree:
    """What a pass over caches returns; zeros where it is not wanted (a bool scalar).

    A branch of its own ends before anything after it begins, so XLA sees that the pass has read all caches when a
    commit writes the first. A pass in line with the commit makes it copy the caches.
    """
    shapes = jax.eval_shape(run)
    return jax.lax.cond(wanted, run, lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))
