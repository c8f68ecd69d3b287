"""What is known of the machine and of what is installed on it."""

import os
from importlib import metadata


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def version_of(distribution: str) -> str | None:
    """Version of an installed distribution; None where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


__all__ = ["cores", "version_of"]
