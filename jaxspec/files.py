"""Files that appear whole or not at all, where they can be written."""

import os
from pathlib import Path


def check_place(name: str) -> None:
    """Refuse, in one sentence, a file that cannot be written: before the work it is to hold is done."""
    path = Path(name)
    folder = path.absolute().parent
    if not path.name or path.is_dir():
        raise ValueError(f"{name!r} names no file; give one, for example trace.html")
    if not folder.is_dir():
        raise ValueError(f"{name} cannot be written: there is no folder {folder}; make it, or choose another place")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"{name} cannot be written: the folder {folder} is read-only; choose another place")


def write_beside(name: str, text: str) -> None:
    """Write a file whole or not at all: beside its place first, then renamed."""
    path = Path(name)
    beside = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8", newline="\n")
        beside.replace(path)
    except OSError as error:
        raise ValueError(f"{name} cannot be written: {error.strerror}; choose another place") from error
    finally:
        beside.unlink(missing_ok=True)
