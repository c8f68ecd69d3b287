"""Write a folder beside its destination and rename it there, so that only whole ones ever appear."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from jaxspec.checkpoint.tensors import CheckpointError


@contextlib.contextmanager
def new_folder(destination: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """An empty folder beside `destination` to write into; it is renamed when the block ends, removed if it fails.

    Raises CheckpointError if the destination exists (unless it is an empty folder, or `overwrite`), or when the disk
    is full or read-only.
    """
    if not overwrite and _in_use(destination):
        raise CheckpointError(f"{destination}: already exists; choose another name, or give --overwrite")
    destination = Path(os.path.abspath(destination))
    staged = destination.parent / f".{destination.name}.partial-{os.getpid()}"
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        _sweep(destination)
        staged.mkdir()
        yield staged
        _move(staged, destination)
    except CheckpointError:
        raise
    except OSError as error:
        raise unwritable(destination, error) from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _in_use(destination: Path) -> bool:
    if destination.is_dir() and not destination.is_symlink():
        return any(destination.iterdir())
    return destination.exists() or destination.is_symlink()


def unwritable(destination: Path, error: Exception) -> CheckpointError:
    """The error for a destination that cannot be written to the end."""
    code = re.search(r"os_error_code='(\d+)'", str(error))  # TensorStore's way to tell
    reason = os.strerror(int(code[1])) if code else getattr(error, "strerror", None) or str(error).splitlines()[0][:300]
    return CheckpointError(
        f"{destination}: cannot be written ({reason}), nothing was left there; free space or choose another place"
    )


def _move(staged: Path, destination: Path) -> None:
    old = staged.with_name(f"{staged.name}-old")
    if _in_use(destination):
        destination.rename(old)
    staged.rename(destination)
    if old.is_dir() and not old.is_symlink():
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.unlink(missing_ok=True)


def _sweep(destination: Path) -> None:
    """Remove what processes that were killed left behind."""
    for stale in destination.parent.glob(f".{destination.name}.partial-*"):
        number = stale.name.rpartition("-")[2]
        if number.isdigit() and not _alive(int(number)):
            shutil.rmtree(stale, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
