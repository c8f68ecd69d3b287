"""Speculative decoding in JAX with the draft source and its length chosen inside one compiled loop."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxspec.pipeline import load

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    """`jaxspec.load` on first use: importing a part of the package does not import all of it."""
    if name == "load":
        return import_module("jaxspec.pipeline").load
    raise AttributeError(f"module 'jaxspec' has no attribute {name!r}")
