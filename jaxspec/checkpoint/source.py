"""Open a checkpoint of any kind, and load its parameters straight to a dtype and a sharding, one tensor at a time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from jaxspec.checkpoint import gguf, gguf_model, hub
from jaxspec.checkpoint.tensors import CheckpointError, LazyTensor, Shape

Shardings = Sharding | Mapping[str, Sharding] | Callable[[str, Shape], Sharding]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint; no weight has been read.

    `config` is a Hugging Face `config.json`, `tensors` our names (Hugging Face's less "model.") to lazy tensors,
    `tokenizer` the folder that holds the tokenizer's files, or the metadata fields of a GGUF file.
    """

    path: Path
    kind: str  # "gguf" | "safetensors" | "orbax"
    config: dict[str, Any]
    tensors: Mapping[str, LazyTensor]
    tokenizer: Path | dict[str, Any]


def open_checkpoint(name: str | Path) -> Checkpoint:
    """Open a local folder or file, the default target by name, or a hub id. Raises CheckpointError."""
    path = hub.resolve(name)
    if path.is_file():
        return _open_file(path)
    raise CheckpointError(f"{path}: not a checkpoint")


def _open_file(path: Path) -> Checkpoint:
    if path.suffix in (".bin", ".pt", ".pth"):
        raise CheckpointError(f"{path}: pickled weights can run code; not read")
    file = gguf.read(path)
    config = gguf_model.hf_config(file)
    return Checkpoint(path, "gguf", config, gguf_model.tensors(file, config), file.fields)


def load_params(
    source: Checkpoint,
    *,
    dtype: Any = None,
    shardings: Shardings | None = None,
    progress: Progress | None = None,
) -> dict[str, jax.Array]:
    """All parameters of `source`, each put on its sharding as it is read: the host holds one tensor at a time.

    `dtype` casts every tensor; None keeps the stored types (float32 for quantised ones). `shardings` is one sharding,
    a mapping by name, or a function of name and shape; None means the default device. `progress(done, total)` is
    called after each tensor, in bytes read.
    """
    total, done = sum(t.nbytes for t in source.tensors.values()), 0
    params: dict[str, jax.Array] = {}
    for name, tensor in source.tensors.items():
        params[name] = place(tensor, dtype, _sharding(shardings, name, tensor.shape))
        done += tensor.nbytes
        if progress is not None:
            progress(done, total)
    return params


def _sharding(shardings: Shardings | None, name: str, shape: Shape) -> Sharding | None:
    if shardings is None or isinstance(shardings, Sharding):
        return shardings
    return shardings(name, shape) if callable(shardings) else shardings[name]


def place(tensor: LazyTensor, dtype: Any, sharding: Sharding | None) -> jax.Array:
    """One tensor on its devices; each device is sent its own part."""
    host = tensor.read() if dtype is None else tensor.cast_to(np.dtype(dtype))
    return jax.device_put(host, sharding)
