"""Read GGUF files: the header with every count and offset checked before it is trusted, tensors one at a time.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. The `gguf` package
supplies the type codes, block sizes and the dequantisation; its reader is not used, since it trusts the file.
"""

import math
import mmap
import os
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from jaxspec.checkpoint.tensors import CheckpointError, LazyTensor

MAGIC = b"GGUF"
VERSIONS = (2, 3)
QUANTISATIONS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")

# Bounds of a header. The largest known vocabularies have 262,144 entries, in four lists; a chat template has 100 KB.
MAX_ELEMENTS = 1 << 22  # values in all metadata arrays together
MAX_STRING = 1 << 24  # bytes of one string
MAX_NAME = 1 << 16  # bytes of a key or a tensor name
MAX_TENSORS = 1 << 17
MAX_FIELDS = 1 << 16
MAX_DEPTH = 4  # arrays of arrays
MAX_ALIGNMENT = 1 << 20

CHUNK = 1 << 18  # elements dequantised at once: temporaries stay in the cache and two threads keep busy

_SCALARS = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT64: "<d",
    GGUFValueType.BOOL: "<?",
}
_STORED = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}
_KINDS = {GGMLQuantizationType[name].value: GGMLQuantizationType[name] for name in QUANTISATIONS}


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies: `shape` in row-major order (GGUF's own order reversed), `offset` from the file's start."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    nbytes: int


@dataclass(frozen=True)
class GGUFFile:
    """A checked header: metadata as plain Python values, and the tensor table."""

    path: Path
    fields: dict[str, Any]
    tensors: dict[str, TensorInfo]


class _Header:
    """A cursor over the file's bytes that refuses to read past their end."""

    def __init__(self, data: mmap.mmap, path: Path):
        self.data, self.path, self.size = data, path, len(data)
        self.at = 0
        self.elements = 0

    def fail(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: not a usable GGUF file: {what}; fetch or convert it again")

    def number(self, form: str) -> Any:
        width = struct.calcsize(form)
        if self.at + width > self.size:
            raise self.fail(f"it ends at byte {self.size}, inside the header")
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += width
        return value

    def text(self, limit: int) -> str:
        length = self.number("<Q")
        if length > limit or length > self.size - self.at:
            raise self.fail(f"a string at byte {self.at} claims {length} bytes")
        raw = self.data[self.at : self.at + length]
        self.at += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail(f"the string at byte {self.at - length} is not UTF-8") from None

    def value(self, code: int, depth: int = 0) -> Any:
        if code == GGUFValueType.STRING:
            return self.text(MAX_STRING)
        if code == GGUFValueType.ARRAY:
            return self.array(depth)
        form = _SCALARS.get(code)  # type: ignore[call-overload]
        if form is None:
            raise self.fail(f"unknown metadata type {code} before byte {self.at}")
        return self.number(form)

    def array(self, depth: int) -> list[Any]:
        code, count = self.number("<I"), self.number("<Q")
        if depth >= MAX_DEPTH:
            raise self.fail(f"arrays are nested more than {MAX_DEPTH} deep at byte {self.at}")
        self.elements += count
        if self.elements > MAX_ELEMENTS:
            raise self.fail(f"its metadata claims more than {MAX_ELEMENTS} array values")
        form = _SCALARS.get(code)  # type: ignore[call-overload]
        if form is None:
            return [self.value(code, depth + 1) for _ in range(count)]
        width = struct.calcsize(form)
        if count * width > self.size - self.at:
            raise self.fail(f"an array at byte {self.at} claims {count} values")
        values = np.frombuffer(self.data, np.dtype(form), count, self.at).tolist() if count else []
        self.at += count * width
        return values


def read(path: str | os.PathLike[str]) -> GGUFFile:
    """Read and check the header of a GGUF file; no tensor is read.

    Raises CheckpointError (a ValueError) on any truncated, corrupt or unsupported file; allocates no more than the
    header's own bytes warrant.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; give the path of a .gguf file")
    if path.stat().st_size < 24:
        raise CheckpointError(f"{path}: not a usable GGUF file: it has only {path.stat().st_size} bytes")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _read_header(_Header(data, path))


def _read_header(head: _Header) -> GGUFFile:
    if head.data[:4] != MAGIC:
        raise head.fail(f"it starts with {head.data[:4]!r}, not {MAGIC!r}")
    head.at = 4
    version = head.number("<I")
    if version not in VERSIONS:
        endian = " (a big-endian file?)" if version & 0xFFFF == 0 else ""
        raise head.fail(f"version {version}{endian} is not supported, versions 2 and 3 are")
    tensor_count, field_count = head.number("<Q"), head.number("<Q")
    if tensor_count > MAX_TENSORS or field_count > MAX_FIELDS:
        raise head.fail(f"it claims {tensor_count} tensors and {field_count} metadata fields")
    fields: dict[str, Any] = {}
    for _ in range(field_count):
        key = head.text(MAX_NAME)
        if key in fields:
            raise head.fail(f"metadata field {key!r} appears twice")
        fields[key] = head.value(head.number("<I"))
    raw = [_read_tensor_info(head) for _ in range(tensor_count)]
    alignment = fields.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise head.fail(f"general.alignment is {alignment!r}, not a power of two")
    start = -(-head.at // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for info in raw:
        if info.name in tensors:
            raise head.fail(f"tensor {info.name!r} appears twice")
        tensors[info.name] = TensorInfo(info.name, info.shape, info.kind, start + info.offset, info.nbytes)
        if info.offset % alignment or start + info.offset + info.nbytes > head.size:
            raise head.fail(f"tensor {info.name!r} lies at {start + info.offset}, {info.nbytes} bytes of {head.size}")
    _refuse_overlap(head, tensors)
    return GGUFFile(head.path, fields, tensors)


def _read_tensor_info(head: _Header) -> TensorInfo:
    name, rank = head.text(MAX_NAME), head.number("<I")
    if not 1 <= rank <= 4:
        raise head.fail(f"tensor {name!r} has {rank} dimensions, 1 to 4 are allowed")
    shape = tuple(head.number("<Q") for _ in range(rank))[::-1]
    code, offset = head.number("<I"), head.number("<Q")
    kind = _KINDS.get(code)
    if kind is None:
        known = {k.value: k.name for k in GGMLQuantizationType}.get(code, f"code {code}")
        raise head.fail(f"tensor {name!r} is of type {known}, supported are {', '.join(QUANTISATIONS)}")
    block, width = GGML_QUANT_SIZES[kind]
    if min(shape) < 1 or shape[-1] % block:
        raise head.fail(f"tensor {name!r} has shape {list(shape)}, which {kind.name} blocks of {block} cannot fill")
    return TensorInfo(name, shape, kind, offset, math.prod(shape) // block * width)


def _refuse_overlap(head: _Header, tensors: dict[str, TensorInfo]) -> None:
    end, before = 0, ""
    for info in sorted(tensors.values(), key=lambda info: info.offset):
        if info.offset < end:
            raise head.fail(f"tensors {before!r} and {info.name!r} overlap")
        end, before = info.offset + info.nbytes, info.name


def lazy(file: GGUFFile, info: TensorInfo) -> LazyTensor:
    """A tensor of a file, dequantised when read; its own dtype is float32, or float16/bfloat16 where stored so."""
    stored = _STORED.get(info.kind.name, _STORED["F32"])
    return LazyTensor(info.shape, stored, lambda dtype: dequantise(file.path, info, dtype))


def rows(info: TensorInfo, start: int, stop: int) -> TensorInfo:
    """The rows [start, stop) of a matrix as a tensor of their own: blocks never cross rows, so they are contiguous."""
    row = info.nbytes // info.shape[0]
    return TensorInfo(
        info.name, (stop - start, *info.shape[1:]), info.kind, info.offset + start * row, (stop - start) * row
    )


def dequantise(path: Path, info: TensorInfo, dtype: np.dtype) -> np.ndarray:
    """The tensor as a row-major array of `dtype` (floating).

    A tensor stored so is mapped; another is converted piece by piece, and only the pieces at work are mapped.
    """
    block, width = GGML_QUANT_SIZES[info.kind]
    if dtype == _STORED.get(info.kind.name):
        return _map(path, info, 0, info.nbytes).view(dtype).reshape(info.shape)
    out = np.empty(math.prod(info.shape), dtype)

    def fill(start: int) -> None:
        stop = min(start + CHUNK, out.size)
        piece = _map(path, info, start // block * width, stop // block * width)
        out[start:stop] = _decode(piece, info.kind)

    _for_each(fill, range(0, out.size, CHUNK))
    return out.reshape(info.shape)


def _map(path: Path, info: TensorInfo, start: int, stop: int) -> np.ndarray:
    """Bytes [start, stop) of a tensor."""
    try:
        return np.memmap(path, np.uint8, mode="r", offset=info.offset + start, shape=(stop - start,)).view(np.ndarray)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: tensor {info.name!r} cannot be read ({error}); fetch the file again") from error


def _decode(piece: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    if kind is GGMLQuantizationType.F16:
        return piece.view(np.float16)
    if kind is GGMLQuantizationType.BF16:
        return piece.view(ml_dtypes.bfloat16)
    return quants.dequantize(piece[None], kind)[0]


def _for_each(work: Callable[[int], None], starts: range) -> None:
    if len(starts) == 1:
        return work(starts[0])
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for _ in pool.map(work, starts):
            pass
