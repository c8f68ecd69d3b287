"""Tensors that are described now and read later, one at a time, and the check of a whole set of them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

Shape = tuple[int, ...]


class CheckpointError(ValueError):
    """A checkpoint that cannot be read, written or matched to its config; the message says what to do."""


@dataclass(frozen=True)
class LazyTensor:
    """One tensor of a checkpoint: its shape and stored dtype are known, its numbers are read by `read()`.

    For a quantised tensor `dtype` is float32, the type it is dequantised to. `cast_to` reads straight into another dtype.
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

    def cast_to(self, dtype: np.dtype) -> np.ndarray:
        """The numbers in `dtype`."""
        return self.load(np.dtype(dtype))


def mapped(tensor: LazyTensor, shape: Shape, change: Callable[[np.ndarray], np.ndarray]) -> LazyTensor:
    """`tensor` with `change` applied when it is read; `shape` is the shape after it."""
    return LazyTensor(shape, tensor.dtype, lambda dtype: change(tensor.load(dtype)))


def computed(array: np.ndarray) -> LazyTensor:
    """An array that is already here, as a lazy tensor."""
    return LazyTensor(array.shape, array.dtype, lambda dtype: array.astype(dtype, copy=False))


def check_names(found: Mapping[str, Shape], expected: Mapping[str, Shape], *, where: str) -> None:
    """Raise one CheckpointError that names every missing, unexpected and misshapen tensor, or return."""
    wrong = [
        f"misshapen: {name} is {list(found[name])}, the config asks for {list(expected[name])}"
        for name in expected
        if name in found and tuple(found[name]) != tuple(expected[name])
    ]
    missing = [f"missing: {name} {list(expected[name])}" for name in expected if name not in found]
    unexpected = [f"unexpected: {name} {list(found[name])}" for name in found if name not in expected]
    report(missing + unexpected + wrong, where=where)


def report(problems: Iterable[str], *, where: str) -> None:
    """Raise one CheckpointError listing `problems`, or return if there are none."""
    lines = list(problems)
    if lines:
        count = "1 tensor does" if len(lines) == 1 else f"{len(lines)} tensors do"
        listing = "\n  ".join(lines)
        raise CheckpointError(f"{where}: {count} not match config.json; fix the config or the weights:\n  {listing}")
