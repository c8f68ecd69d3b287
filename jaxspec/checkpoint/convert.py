"""Convert a checkpoint of any kind to ours, or to a Hugging Face folder, tensor by tensor."""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec import text
from jaxspec.checkpoint import names, safetensors
from jaxspec.checkpoint.config_file import write_config
from jaxspec.checkpoint.source import Checkpoint, open_checkpoint
from jaxspec.checkpoint.staging import new_folder
from jaxspec.checkpoint.tensors import CheckpointError, LazyTensor, Progress

FORMATS = ("orbax", "hf")
MAX_SHARD_BYTES = 5_000_000_000
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""One of them makes a folder one with a tokenizer."""


def convert(
    source: str | Path,
    destination: str | Path,
    *,
    to: str = "orbax",
    dtype: Any = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Convert `source` (local, default target or hub id) into the new folder `destination`; the folder.

    `to` is "orbax" or "hf" (safetensors with config.json, in shards of `max_shard_bytes`); `dtype` casts every tensor,
    None keeps the stored types, so that hf -> orbax -> hf is bit-exact. Written beside and renamed: a conversion that
    fails or is killed leaves no checkpoint. Raises CheckpointError.
    """
    if to not in FORMATS:
        raise CheckpointError(f"cannot convert to {to!r}; formats are {', '.join(FORMATS)}")
    if max_shard_bytes < 1:
        raise CheckpointError(f"a shard of {max_shard_bytes} bytes holds nothing; give at least 1")
    destination = Path(destination)
    opened = open_checkpoint(source)
    if opened.path.resolve().is_relative_to(destination.resolve()):
        raise CheckpointError(f"{destination}: the source lies in it and would be replaced; choose another destination")
    tensors = {name: cast(tensor, dtype) for name, tensor in opened.tensors.items()}
    config = opened.config | _stored_dtype(opened, tensors, dtype)
    add_tokenizer = _tokenizer_writer(opened)
    if to == "orbax":
        from jaxspec.checkpoint import store

        store.save(destination, config, tensors, write_tokenizer=add_tokenizer, overwrite=overwrite, progress=progress)
        return destination
    whole = names.to_hf(tensors, config)
    with new_folder(destination, overwrite=overwrite) as folder:
        _check_space(folder, destination, sum(t.nbytes for t in whole.values()))
        safetensors.write_folder(folder, whole, max_shard_bytes=max_shard_bytes, progress=progress)
        add_tokenizer(folder)
        write_config(folder, config)
    return destination


def cast(tensor: LazyTensor, dtype: Any) -> LazyTensor:
    """The tensor in another dtype, still lazy."""
    return tensor if dtype is None else LazyTensor(tensor.shape, np.dtype(dtype), tensor.load)


def _stored_dtype(source: Checkpoint, tensors: Mapping[str, LazyTensor], dtype: Any) -> dict[str, str]:
    """The config's dtype entry, where the source's own no longer says what is stored."""
    if dtype is None and source.kind != "gguf":
        return {}
    stored = {tensor.dtype.name for tensor in tensors.values()}
    name = stored.pop() if len(stored) == 1 else "float32"
    return dict.fromkeys([key for key in ("dtype", "torch_dtype") if key in source.config] or ["torch_dtype"], name)


def _check_space(folder: Path, destination: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CheckpointError(
            f"{destination}: {needed:,} bytes are needed and {free:,} are free; free space or choose another place"
        )


def _tokenizer_writer(source: Checkpoint) -> Callable[[Path], None]:
    """What writes the tokenizer's files; a tokenizer that cannot be read fails here, before any weight is written."""
    origin = source.tokenizer
    if isinstance(origin, Path):
        if any((origin / name).is_file() for name in VOCABULARIES):
            text.from_folder(origin)  # refuses what could not be read back
        return lambda folder: _copy_files(origin, folder)
    if "tokenizer.ggml.tokens" not in origin:
        return lambda folder: None
    return text.from_gguf(origin).save


def _copy_files(source: Path, folder: Path) -> None:
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


@contextlib.contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """A `progress(done, total)` that draws a bar on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
