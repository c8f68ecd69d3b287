"""The config.json of a checkpoint's folder: Hugging Face's, or ours with the version of its format."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxspec.checkpoint.tensors import CheckpointError

CONFIG = "config.json"
FORMAT_KEY = "jaxspec_format"
FORMAT = 1
PARAMS = "params"  # folder of the Orbax checkpoint in one of ours
MAX_CONFIG = 1 << 22  # bytes


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write config.json."""
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def is_ours(path: Path) -> bool:
    """Whether `path` looks like a checkpoint of ours."""
    return (path / PARAMS).is_dir() and (path / CONFIG).is_file()


def read_config(path: Path) -> dict[str, Any]:
    """The folder's config.json, ours or Hugging Face's. Raises CheckpointError."""
    file = path / CONFIG
    if not file.is_file():
        raise CheckpointError(f"{path}: no {CONFIG}; give a model's folder, or a .gguf file")
    try:
        if file.stat().st_size > MAX_CONFIG:
            raise ValueError(f"it has more than {MAX_CONFIG} bytes")
        config = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("it is not an object")
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not a readable config ({error}); fetch the folder again") from None
    version = config.pop(FORMAT_KEY, FORMAT)
    if version != FORMAT:
        raise CheckpointError(f"{file}: {FORMAT_KEY} is {version!r}, this release reads {FORMAT}; convert it again")
    return config
