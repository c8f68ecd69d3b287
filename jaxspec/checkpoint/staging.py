"""Write a folder beside its destination and rename it there, so that only whole ones ever appear."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from jaxspec.checkpoint.config_file import CONFIG
from jaxspec.checkpoint.tensors import CheckpointError


@contextlib.contextmanager
def new_folder(destination: Path, *, overwrite: bool = False, marker: str = CONFIG) -> Iterator[Path]:
    """An empty folder beside `destination` to write into; it is renamed when the block ends, removed if it fails.

    Raises CheckpointError if the destination exists (unless it is an empty folder, or a checkpoint and `overwrite`), or
    when the disk is full or read-only. A folder is a checkpoint where it has a file `marker`.
    """
    destination = Path(os.path.abspath(destination))
    staged = destination.parent / f".{destination.name}.partial-{os.getpid()}"
    try:
        _check_free(destination, marker, overwrite=overwrite)
        destination.parent.mkdir(parents=True, exist_ok=True)
        _sweep(destination)
        staged.mkdir()
        yield staged
        _check_free(destination, marker, overwrite=overwrite)  # again: it may have been made meanwhile
        _move(staged, destination, replace=overwrite)
    except CheckpointError:
        raise
    except OSError as error:
        raise unwritable(destination, error) from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _check_free(destination: Path, marker: str, *, overwrite: bool) -> None:
    if not _in_use(destination):
        return
    if not overwrite:
        raise CheckpointError(f"{destination}: already exists; choose another name, or give --overwrite")
    if not (destination / marker).is_file():
        raise CheckpointError(f"{destination}: no checkpoint, and only those are overwritten; choose another name")


def _in_use(destination: Path) -> bool:
    if destination.is_dir() and not destination.is_symlink():
        return any(destination.iterdir())
    return destination.exists() or destination.is_symlink()


def unwritable(destination: Path, error: Exception) -> CheckpointError:
    """The error for a destination that cannot be written to the end."""
    return CheckpointError(
        f"{destination}: cannot be written ({reason(error)}), nothing was left there; "
        "free space or choose another place"
    )


def reason(error: BaseException) -> str:
    """Why writing failed, in the system's words where it was the system's error."""
    code = re.search(r"os_error_code='(\d+)'", str(error))  # TensorStore's way to tell
    if code:
        return os.strerror(int(code[1]))
    return getattr(error, "strerror", None) or (str(error).splitlines() or [type(error).__name__])[0][:300]


def _move(staged: Path, destination: Path, *, replace: bool) -> None:
    old = staged.with_name(f"{staged.name}-old")
    if replace and _in_use(destination):  # else the rename fails on what is there
        destination.rename(old)
    try:
        staged.rename(destination)
    except OSError:
        if old.exists():
            old.rename(destination)
        raise
    if old.is_dir() and not old.is_symlink():
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.unlink(missing_ok=True)


def _sweep(destination: Path) -> None:
    """Remove what processes that were killed left behind; what they had moved away and not replaced comes back."""
    for stale in destination.parent.glob(f".{destination.name}.partial-*"):
        number = stale.name.removesuffix("-old").rpartition("-")[2]
        if not number.isdigit() or _alive(int(number)):
            continue
        if stale.name.endswith("-old") and not destination.exists():
            stale.rename(destination)
        else:
            shutil.rmtree(stale, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
