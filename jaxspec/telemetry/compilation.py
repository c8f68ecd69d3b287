"""Compilations: kept on disk between runs, and counted, since a loop that recompiles is a fault."""

import os
from pathlib import Path
from typing import Any

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"
_counts = {"compilations": 0}


def _listen(event: str, duration_secs: float, **_: object) -> None:
    del duration_secs
    if event == _EVENT:
        _counts["compilations"] += 1


jax.monitoring.register_event_duration_secs_listener(_listen)


def compilations() -> int:
    """Programs this process has compiled or fetched compiled since this module was imported."""
    return _counts["compilations"]


def cache_folder() -> Path:
    """Where downloads and compiled programs are kept: JAXSPEC_CACHE, else ~/.cache/jaxspec."""
    return Path(os.environ.get("JAXSPEC_CACHE") or Path.home() / ".cache" / "jaxspec")


def keep_compilations(folder: Path | None = None) -> None:
    """Turn on JAX's persistent compilation cache, unless the user has pointed it somewhere or turned it off.

    Args:
        folder: where; `cache_folder()/compiled` where None.
    """
    settings: Any = jax.config  # its options are made at import time, so no checker knows them
    if settings.jax_compilation_cache_dir is None and settings.jax_enable_compilation_cache:
        jax.config.update("jax_compilation_cache_dir", str(folder or cache_folder() / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
