"""Token trees by their parents; a chain is the tree whose parent is i-1.

Node 0 is the root: the last known token. A parent comes before its children.

    parents -1 0 0 1      ancestors, row t, column j      depths
        0                     0: x . . .                  0
       / \\                    1: x x . .                  1
      1   2                   2: x . x .                  1
      |                       3: x x . x                  2
      3

A numpy array of parents gives numpy arrays, usable as static values; a traced one gives traced arrays.
"""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

ArrayT = TypeVar("ArrayT", np.ndarray, jax.Array)


def chain(width: int) -> np.ndarray:
    """Parents of a chain of `width` nodes, the root included; int32 [T].

    chain(4)  ->  -1 0 1 2
    """
    return np.arange(-1, width - 1, dtype=np.int32)


def ancestors(parents: ArrayT) -> ArrayT:
    """Whether node j is an ancestor of node t, or t itself, at [..., t, j]; bool.

    Args:
        parents: int32 [T] or [B, T]; -1 for the root, and for padding, which then has no ancestor but itself.
    """
    xp = np if isinstance(parents, np.ndarray) else jnp
    width = parents.shape[-1]
    nodes = xp.broadcast_to(xp.arange(width, dtype=parents.dtype), parents.shape)
    itself = xp.broadcast_to(xp.eye(width, dtype=bool), (*parents.shape, width))
    within: Any = (parents[..., :, None] == nodes[..., None, :]) | itself
    # Every product doubles the generations that are reached: 1, 2, 4.
    for _ in range((width - 1).bit_length()):
        steps = within.astype(np.int32)
        within = xp.matmul(steps, steps) > 0
    return within


def graft(parents: np.ndarray, branch: np.ndarray) -> np.ndarray:
    """One tree of two with the same root: the nodes of `branch` follow those of `parents`, its root left out; int32.

    parents -1 0 1, branch -1 0 0 2   ->   -1 0 1 0 0 4
    """
    moved = np.where(branch[1:] > 0, branch[1:] + len(parents) - 1, branch[1:])
    return np.concatenate([parents, moved]).astype(np.int32)


def depths(parents: ArrayT) -> ArrayT:
    """Number of each node's ancestors, int32, shaped as `parents`; the root has 0, as has padding."""
    within: Any = ancestors(parents)
    return within.sum(-1, dtype=np.int32) - 1
