"""Where tensors go, one sharding for all, a mapping by name or a function of name and shape; and how they lie there."""

from collections.abc import Callable, Mapping

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from jaxspec.checkpoint.tensors import Shape
from jaxspec.typing import Params

Shardings = Sharding | Mapping[str, Sharding] | Callable[[str, Shape], Sharding]


def sharding_of(shardings: Shardings | None, name: str, shape: Shape) -> Sharding:
    """The sharding of one tensor; the default device where nothing is said."""
    if shardings is None:
        return SingleDeviceSharding(jax.devices()[0])
    if isinstance(shardings, Sharding):
        return shardings
    return shardings(name, shape) if callable(shardings) else shardings[name]


ALIGNMENT = 4096
"""Bytes; a view that starts at a multiple of it becomes a device array without a copy."""


def gather(params: Params) -> Params:
    """The same parameters in one allocation, where the default device is a CPU; elsewhere as they are.

    numpy asks for huge pages for large allocations, and weights that lie in huge pages are read a tenth faster than
    weights in pages of their own of 4 KiB.

    Args:
        params: on one device; emptied as it goes, so that one parameter at a time is held twice.
    """
    if jax.default_backend() != "cpu":
        return params
    sizes = [-(-leaf.nbytes // ALIGNMENT) * ALIGNMENT for leaf in params.values()]
    room = np.empty(sum(sizes) + ALIGNMENT, np.uint8)
    at, gathered = -room.ctypes.data % ALIGNMENT, {}
    for name, size in zip(list(params), sizes, strict=True):
        leaf = params.pop(name)
        view = room[at : at + leaf.nbytes].view(leaf.dtype).reshape(leaf.shape)
        view[...] = leaf
        gathered[name] = jax.device_put(view)
        at += size
    return gathered
