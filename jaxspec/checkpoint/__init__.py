"""Checkpoints: names to files, GGUF, safetensors and Orbax to parameters, and conversions between them."""

from jaxspec.checkpoint.convert import convert
from jaxspec.checkpoint.hub import resolve
from jaxspec.checkpoint.source import Checkpoint, load_params, open_checkpoint
from jaxspec.checkpoint.store import load, save
from jaxspec.checkpoint.tensors import CheckpointError, LazyTensor

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "LazyTensor",
    "convert",
    "load",
    "load_params",
    "open_checkpoint",
    "resolve",
    "save",
]
