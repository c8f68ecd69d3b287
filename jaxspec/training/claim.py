"""A folder of long work says how it was begun, so that only the same work goes on in it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxspec.checkpoint.staging import reason


def claim(
    file: Path,
    settings: Mapping[str, Any],
    *,
    what: str,
    free: Sequence[str] = (),
    error: type[ValueError] = ValueError,
) -> None:
    """Write the settings into a folder that is made where it is missing, or compare them with those it was begun with.

    Args:
        file: of the settings, in the folder.
        settings: plain data.
        what: the folder holds, for the error: "a corpus".
        free: settings that may differ; the new values are kept.
        error: class of the error.

    Raises:
        ValueError: other settings (the first difference is named), a file that is broken, a folder that cannot be used.
    """
    settings = json.loads(json.dumps(settings))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else settings
    except OSError as problem:
        raise error(f"{file.parent} cannot be used ({reason(problem)}); choose another") from problem
    except ValueError as problem:
        raise error(f"{file} is broken ({problem}); choose another folder, or delete this one") from None
    for name in (*settings, *before):
        if name not in free and before.get(name) != settings.get(name):
            raise error(
                f"{file.parent} holds {what} with {name} {before.get(name)!r}, asked for is {settings.get(name)!r}; "
                "give the same settings to go on with it, or another folder"
            )
    try:
        replace(file, json.dumps(settings, indent=2) + "\n")
    except OSError as problem:
        raise error(f"{file} cannot be written ({reason(problem)}); free space or choose another") from problem


def replace(file: Path, text: str) -> None:
    """Write a file that is whole or as it was."""
    beside = file.with_suffix(".part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(file)
