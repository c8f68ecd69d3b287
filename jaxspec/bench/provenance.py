"""Where numbers come from: versions, machine, commit."""

import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import jax

from jaxspec.machine import cores, version_of

PACKAGES = ("jaxspec-decode", "jax", "jaxlib", "flax", "numpy", "transformers", "tokenizers", "torch")


def provenance() -> dict[str, Any]:
    """What a reader needs to judge a number or to make it again."""
    return {
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {"python": platform.python_version()} | {name: version_of(name) for name in PACKAGES},
        "cores": cores(),
        "processor": _processor(),
        "memory_bytes": memory_bytes(),
        "devices": [f"{device.platform} {device.device_kind}" for device in jax.devices()],
        "load": load(),
    }


def load() -> float | None:
    """Processes that wanted to run over the last minute; above the cores, timings mean little."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _commit() -> str | None:
    """The checkout's commit, with a plus where files differ from it; None outside a checkout."""
    try:
        head, changed = (_git(*words) for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno")))
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changed else "")


def _git(*words: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def memory_bytes() -> int | None:
    """The machine's main memory; None where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
