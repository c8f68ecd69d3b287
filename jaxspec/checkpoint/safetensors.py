"""Read and write .safetensors files: headers checked before they are trusted, tensors mapped or written one at a time.

Format: https://huggingface.co/docs/safetensors. Ours rather than the library's reader and writer because it must give
one tensor at a time without torch, in bfloat16, and write a file without holding it.
"""

import json
import math
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxspec.checkpoint.tensors import CheckpointError, LazyTensor, Shape

MAX_HEADER = 1 << 23  # bytes; about 50,000 tensors
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLES = (".bin", ".pt", ".pth")

DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies: `offset` is from the file's start."""

    path: Path
    name: str
    dtype: np.dtype
    shape: Shape
    offset: int


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensor table of one file. Raises CheckpointError on any truncated, corrupt or hostile file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= min(MAX_HEADER, size - 8):
            raise _broken(path, f"its header claims {length} bytes in a file of {size}")
        raw = file.read(length)
    entries = _parse(path, raw)
    entries.pop("__metadata__", None)
    found = {name: _entry(path, name, entry, 8 + length) for name, entry in entries.items()}
    end = 8 + length
    for info in sorted(found.values(), key=lambda info: (info.offset, _nbytes(info))):
        if info.offset != end:
            raise _broken(path, f"tensor {info.name!r} starts at byte {info.offset}, the one before it ends at {end}")
        end += _nbytes(info)
    if end != size:
        raise _broken(path, f"its tensors end at byte {end} and the file at {size}")
    return found


def _broken(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path}: not a usable safetensors file: {what}; fetch or convert it again")


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name appears twice")
        return found

    try:
        entries = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise _broken(path, f"its header is not JSON ({error})") from None
    if not isinstance(entries, dict):
        raise _broken(path, "its header is not a JSON object")
    return entries


def _entry(path: Path, name: str, entry: Any, start: int) -> TensorInfo:
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise _broken(path, f"the entry of tensor {name!r} lacks dtype, shape or data_offsets")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    dtype = DTYPES.get(code) if isinstance(code, str) else None
    if dtype is None:
        raise _broken(path, f"tensor {name!r} has dtype {code!r}; known are {', '.join(DTYPES)}")
    if not _naturals(shape) or len(shape) > 8 or not _naturals(offsets) or len(offsets) != 2:
        raise _broken(path, f"tensor {name!r} has shape {shape!r:.80} and offsets {offsets!r:.80}")
    if offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize:
        raise _broken(path, f"tensor {name!r} of shape {shape} in {code} has {offsets[1] - offsets[0]} bytes")
    return TensorInfo(path, name, dtype, tuple(shape), start + offsets[0])


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 2**63 for v in value)


def _nbytes(info: TensorInfo) -> int:
    return math.prod(info.shape) * info.dtype.itemsize


def lazy(info: TensorInfo) -> LazyTensor:
    """The tensor as a lazy one; only its own bytes are mapped, and only while its array lives."""
    return LazyTensor(info.shape, info.dtype, lambda dtype: _map(info).astype(dtype, copy=False))


def _map(info: TensorInfo) -> np.ndarray:
    if 0 in info.shape:
        return np.zeros(info.shape, info.dtype)
    try:
        raw = np.memmap(info.path, np.uint8, mode="r", offset=info.offset, shape=(_nbytes(info),))
    except (OSError, ValueError) as error:
        raise _broken(info.path, f"tensor {info.name!r} cannot be read ({error})") from error
    return raw.view(np.ndarray).view(info.dtype).reshape(info.shape)


def rows(info: TensorInfo, start: int, stop: int) -> TensorInfo:
    """The rows [start, stop) of a tensor as a tensor of their own."""
    row = _nbytes(info) // info.shape[0]
    return TensorInfo(info.path, info.name, info.dtype, (stop - start, *info.shape[1:]), info.offset + start * row)


def read_folder(folder: Path) -> dict[str, TensorInfo]:
    """The tensors of a folder's weights, in one file or in shards with an index. Raises CheckpointError."""
    found: dict[str, TensorInfo] = {}
    for name in _files(folder):
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder}: {INDEX} names {name!r}, which is not there; fetch the folder again")
        for tensor, info in read_header(folder / name).items():
            if tensor in found:
                raise CheckpointError(f"{folder}: tensor {tensor!r} is in {found[tensor].path.name} and in {name}")
            found[tensor] = info
    if lost := [tensor for tensor in _index(folder) if tensor not in found]:
        raise CheckpointError(f"{folder}: {INDEX} names tensors that its files lack: {', '.join(lost)}")
    return found


def missing_shards(folder: Path) -> list[str]:
    """Weight files that a folder should have and has not; for a folder without any, the name of the usual one."""
    try:
        return [name for name in _files(folder) if not (folder / name).is_file()]
    except CheckpointError:
        return [SINGLE]


def _files(folder: Path) -> list[str]:
    if (folder / INDEX).is_file():
        return sorted(set(_index(folder).values()))
    if (folder / SINGLE).is_file():
        return [SINGLE]
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    if len(names) == 1:
        return names
    if names:
        raise CheckpointError(f"{folder}: {len(names)} .safetensors files and no {INDEX}; fetch the folder again")
    if pickles := sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES):
        raise refuse_pickle(folder / pickles[0])
    raise CheckpointError(f"{folder}: no {SINGLE} and no {INDEX}; give a folder with safetensors weights")


def refuse_pickle(path: Path) -> CheckpointError:
    """The error for pickled weights."""
    return CheckpointError(
        f"{path}: pickled weights can run code when they are read, so they are refused; convert them where you trust "
        "them, with transformers' AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
    )


def _index(folder: Path) -> dict[str, str]:
    path = folder / INDEX
    if not path.is_file():
        return {}
    if path.stat().st_size > MAX_HEADER:
        raise CheckpointError(f"{path}: {path.stat().st_size} bytes; an index has at most {MAX_HEADER}")
    parsed = _parse(path, path.read_bytes()).get("weight_map")
    if not isinstance(parsed, dict) or not parsed:
        raise CheckpointError(f"{path}: it has no weight_map; fetch the folder again")
    for name in parsed.values():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointError(f"{path}: {name!r} is not the name of a .safetensors file in the same folder")
    return parsed


def write_folder(
    folder: Path,
    tensors: Mapping[str, LazyTensor],
    *,
    max_shard_bytes: int,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write tensors in order into model.safetensors, or into shards of at most `max_shard_bytes` and an index.

    One tensor is in memory at a time. A tensor larger than a shard gets one of its own.
    """
    shards = _shards(tensors, max_shard_bytes)
    names = (
        [SINGLE] if len(shards) == 1 else [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in _ordinals(shards)]
    )
    total, done = sum(t.nbytes for t in tensors.values()), 0
    for name, members in zip(names, shards, strict=True):
        with (folder / name).open("wb") as file:
            file.write(_header({member: tensors[member] for member in members}))
            for member in members:
                file.write(np.ascontiguousarray(tensors[member].read()).reshape(-1).view(np.uint8).data)
                done += tensors[member].nbytes
                if progress is not None:
                    progress(done, total)
            file.flush()
            os.fsync(file.fileno())
    if len(shards) > 1:
        weight_map = {member: name for name, members in zip(names, shards, strict=True) for member in members}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def _ordinals(shards: list[list[str]]) -> range:
    return range(1, len(shards) + 1)


def _shards(tensors: Mapping[str, LazyTensor], limit: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += tensor.nbytes
    return shards


def _header(tensors: Mapping[str, LazyTensor]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": _CODES[tensor.dtype], "shape": tensor.shape, "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)  # the data start on a multiple of 8
    return struct.pack("<Q", len(raw)) + raw
