"""Checkpoints: names to files, GGUF, safetensors and Orbax to parameters, and conversions between them."""

from typing import TYPE_CHECKING, Any

from jaxspec.checkpoint.artifact import Artifact, attach, open_draft, save_draft
from jaxspec.checkpoint.convert import convert
from jaxspec.checkpoint.fingerprint import fingerprint
from jaxspec.checkpoint.hub import resolve
from jaxspec.checkpoint.placement import gather
from jaxspec.checkpoint.source import Checkpoint, load_params, open_checkpoint
from jaxspec.checkpoint.tensors import CheckpointError, LazyTensor

if TYPE_CHECKING:
    from jaxspec.checkpoint.store import load, save

__all__ = [
    "Artifact",
    "Checkpoint",
    "CheckpointError",
    "LazyTensor",
    "attach",
    "convert",
    "fingerprint",
    "gather",
    "load",
    "load_params",
    "open_checkpoint",
    "open_draft",
    "resolve",
    "save",
    "save_draft",
]


def __getattr__(name: str) -> Any:
    """`load` and `save` come with Orbax, which takes a second to import: only when they are asked for."""
    if name not in ("load", "save"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from jaxspec.checkpoint import store

    return getattr(store, name)
