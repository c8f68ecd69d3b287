"""Tensors that are described now and read later, one at a time, and the check of a whole set of them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import jax
import numpy as np
from numpy.typing import DTypeLike

PIECE = 1 << 24  # bytes compared at once

Shape = tuple[int, ...]
Progress = Callable[[int, int], None]  # bytes done, bytes in all


class CheckpointError(ValueError):
    """A checkpoint that cannot be read, written or matched to its config; the message says what to do."""


@dataclass(frozen=True)
class LazyTensor:
    """One tensor of a checkpoint: its shape and stored dtype are known, its numbers are read by `read()`.

    For a quantised tensor `dtype` is float32, the type it is dequantised to.
    """

    shape: Shape
    dtype: np.dtype
    load: Callable[[np.dtype], np.ndarray]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in its own dtype."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def read(self) -> np.ndarray:
        """The numbers in the stored dtype."""
        return self.load(self.dtype)

    def cast_to(self, dtype: DTypeLike) -> np.ndarray:
        """The numbers in `dtype`."""
        return self.load(np.dtype(dtype))


def mapped(tensor: LazyTensor, shape: Shape, change: Callable[[np.ndarray], np.ndarray]) -> LazyTensor:
    """`tensor` with `change` applied when it is read; `shape` is the shape after it."""
    return LazyTensor(shape, tensor.dtype, lambda dtype: change(tensor.load(dtype)))


def in_memory(array: np.ndarray | jax.Array) -> LazyTensor:
    """An array of the host or of the devices as a lazy tensor; a sharded one is gathered when it is read."""
    return LazyTensor(
        tuple(array.shape), np.dtype(array.dtype), lambda dtype: np.asarray(array).astype(dtype, copy=False)
    )


def rows_equal(a: LazyTensor, b: LazyTensor) -> bool:
    """Whether two tensors hold the same bytes, compared in pieces so that nothing large is allocated."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    left, right = (t.read().reshape(-1).view(np.uint8) for t in (a, b))
    return all(np.array_equal(left[i : i + PIECE], right[i : i + PIECE]) for i in range(0, left.size, PIECE))


def differences(found: Mapping[str, Shape], expected: Mapping[str, Shape]) -> list[str]:
    """One line for every missing, unexpected and misshapen tensor."""
    missing = [f"missing: {name} {list(shape)}" for name, shape in expected.items() if name not in found]
    unexpected = [f"unexpected: {name} {list(shape)}" for name, shape in found.items() if name not in expected]
    misshapen = [
        f"misshapen: {name} is {list(found[name])}, the config asks for {list(shape)}"
        for name, shape in expected.items()
        if name in found and tuple(found[name]) != tuple(shape)
    ]
    return missing + unexpected + misshapen


def report(problems: Iterable[str], *, where: str, config: str = "config.json") -> None:
    """Raise one CheckpointError listing `problems`, or return if there are none; `config` is what they contradict."""
    lines = list(problems)
    if lines:
        count = "1 tensor does" if len(lines) == 1 else f"{len(lines)} tensors do"
        listing = "\n  ".join(lines)
        raise CheckpointError(f"{where}: {count} not match {config}; fix the config or the weights:\n  {listing}")
