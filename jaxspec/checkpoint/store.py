"""Our own checkpoints: a folder with an Orbax checkpoint `params/`, a `config.json` and the tokenizer's files."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts

from jaxspec.checkpoint import names
from jaxspec.checkpoint.config_file import FORMAT, FORMAT_KEY, PARAMS, read_config, write_config
from jaxspec.checkpoint.placement import Shardings, sharding_of
from jaxspec.checkpoint.staging import new_folder, unwritable
from jaxspec.checkpoint.tensors import CheckpointError, LazyTensor, Progress, Shape, in_memory
from jaxspec.models.config import ModelConfig

CHUNK_BYTES = 1 << 21  # one stored piece of a tensor; devices read only those they hold, and each thread keeps some
CHUNKS_AT_ONCE = 2  # pieces encoded at a time
GROUP_BYTES = 1 << 23  # smaller tensors are written together: Orbax adds files with every write


class _LazyHandler(ocp.type_handlers.NumpyHandler):
    """Lets Orbax write lazy tensors: each group is read when its turn comes and gone before the next."""

    def __init__(self, progress: Progress | None, total: int):
        super().__init__(deepcopy_host_arrays=False)
        self.progress, self.total, self.done = progress, total, 0
        self.failure: Exception | None = None

    async def serialize(self, values: Any, infos: Any, args: Any = None) -> list[Any]:
        args = args or [ocp.SaveArgs()] * len(values)
        for group in _groups([value.nbytes for value in values]):
            read = [value.read() for value in values[group]]
            for pending in await super().serialize(read, infos[group], args[group]):
                pending.result()
            if self.failure is not None:
                raise self.failure
            for value in values[group]:
                self.done += value.nbytes
                if self.progress is not None:
                    self.progress(self.done, self.total)
        return []

    async def _open_and_write(self, value: np.ndarray, tspec: dict[str, Any], ts_context: ts.Context) -> None:
        """Orbax's step that writes one array, here some chunks at a time: a whole one would be held encoded too.

        A failure is kept for `serialize` to raise when the group's other writes have ended, not abandoned them.
        """
        try:
            array = await ts.open(ts.Spec(tspec), create=True, open=True, context=ts_context)
            if value.ndim == 0:
                await array.write(value)
                return
            chunk = array.chunk_layout.write_chunk.shape or value.shape
            rows = CHUNKS_AT_ONCE * (chunk[0] or 1)
            for start in range(0, len(value), rows):
                stop = min(start + rows, len(value))
                await array[start:stop].write(value[start:stop])
        except Exception as error:  # TensorStore's, of many types
            self.failure = error


def _groups(sizes: list[int]) -> list[slice]:
    """Runs of neighbours that have at most GROUP_BYTES together; a larger tensor is alone."""
    groups, start, held = [], 0, 0
    for index, size in enumerate(sizes):
        if index > start and held + size > GROUP_BYTES:
            groups.append(slice(start, index))
            start, held = index, 0
        held += size
    return [*groups, slice(start, len(sizes))] if sizes else []


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without Orbax's log lines, which tell of its own files."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def save(
    path: str | Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, LazyTensor | np.ndarray | jax.Array],
    *,
    write_tokenizer: Callable[[Path], None] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write a checkpoint: a few tensors at a time, beside `path`, renamed when it is whole.

    `tensors` go by our names and keep their dtypes; `write_tokenizer(folder)` adds the tokenizer's files;
    `progress(done, total)` counts bytes. Raises CheckpointError if `path` exists or cannot be written.
    """
    path = Path(path)
    lazy = {name: t if isinstance(t, LazyTensor) else in_memory(t) for name, t in tensors.items()}
    with new_folder(path, overwrite=overwrite) as folder:
        handler = _LazyHandler(progress, sum(t.nbytes for t in lazy.values()))
        registry = ocp.type_handlers.create_type_handler_registry((LazyTensor, handler))
        chunked = {name: ocp.SaveArgs(chunk_byte_size=CHUNK_BYTES) for name in lazy}
        try:
            with _quiet(), ocp.Checkpointer(ocp.PyTreeCheckpointHandler(type_handler_registry=registry)) as saver:
                saver.save(folder / PARAMS, args=ocp.args.PyTreeSave(lazy, save_args=chunked))
            (folder / PARAMS / "commit_success.txt").unlink(missing_ok=True)  # unread, and it names the staging folder
        except CheckpointError:
            raise
        except Exception as error:  # Orbax raises bare ones
            raise unwritable(path, error) from error
        if write_tokenizer is not None:
            write_tokenizer(folder)
        write_config(folder, {FORMAT_KEY: FORMAT, **config})  # last, since a folder without it is no checkpoint


def open_folder(path: Path) -> tuple[dict[str, Any], dict[str, LazyTensor]]:
    """Config and lazy tensors of one of our checkpoints, checked against each other. Raises CheckpointError."""
    config = read_config(path)
    with _reading(path) as reader:
        metadata = reader.metadata(_params(path)).item_metadata
        described = {} if metadata is None else metadata.tree
        found = {name: _lazy(path, name, tuple(meta.shape), np.dtype(meta.dtype)) for name, meta in described.items()}
    names.check(found, ModelConfig.from_hf(config), where=str(path))
    return config, found


def _params(path: Path) -> Path:
    """The folder that Orbax reads; of a relative path it finds no tensors and says nothing."""
    return path.absolute() / PARAMS


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[ocp.Checkpointer]:
    try:
        with _quiet(), ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            yield reader
    except CheckpointError:
        raise
    except Exception as error:  # Orbax raises bare ones
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        reason = str(root).splitlines()[0][:300] if str(root) else type(root).__name__
        raise CheckpointError(
            f"{path / PARAMS}: not a readable Orbax checkpoint ({reason}); convert it again"
        ) from error


def _lazy(path: Path, name: str, shape: Shape, dtype: np.dtype) -> LazyTensor:
    def load(target: np.dtype) -> np.ndarray:
        wanted = {name: jax.ShapeDtypeStruct(shape, dtype)}
        with _reading(path) as reader:
            args = {name: ocp.RestoreArgs(restore_type=np.ndarray)}
            found = reader.restore(
                _params(path), args=ocp.args.PyTreeRestore(wanted, restore_args=args, partial_restore=True)
            )
        return found[name].astype(target, copy=False)

    return LazyTensor(shape, dtype, load)


def load(
    path: str | Path, *, shardings: Shardings | None = None, dtype: Any = None
) -> tuple[dict[str, Any], dict[str, jax.Array]]:
    """Config and parameters of one of our checkpoints, read straight onto their shardings.

    `shardings` is one sharding, a mapping by name, or a function of name and shape; None means the default device.
    `dtype` casts every tensor; None keeps the stored types. Each device reads only the pieces that it holds, whatever
    mesh wrote them. Raises CheckpointError with every missing, unexpected and misshapen tensor.
    """
    path = Path(path)
    config, tensors = open_folder(path)
    return config, restore(path, tensors, shardings=shardings, dtype=dtype)


def restore(
    path: Path, tensors: Mapping[str, LazyTensor], *, shardings: Shardings | None = None, dtype: Any = None
) -> dict[str, jax.Array]:
    """The described tensors of one of our checkpoints on their shardings; see `load`."""
    wanted = {name: jax.ShapeDtypeStruct(t.shape, t.dtype) for name, t in tensors.items()}
    args = {
        name: ocp.ArrayRestoreArgs(sharding=sharding_of(shardings, name, t.shape), dtype=dtype)
        for name, t in tensors.items()
    }
    with _reading(path) as reader:
        return reader.restore(_params(path), args=ocp.args.PyTreeRestore(wanted, restore_args=args))
