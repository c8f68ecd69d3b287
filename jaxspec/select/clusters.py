"""Kinds of text as directions of the target's hidden states: `SelectorParams.clusters`, made by build_clusters.py.

clusters.json           fingerprint of the target, sizes, and a card for people
clusters.safetensors    clusters [C, D] float32, each of length 1
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from jaxtyping import Float

RECORD, ARRAYS, FORMAT = "clusters.json", "clusters.safetensors", 1


def read_clusters(folder: str | Path, target: str | None = None) -> Float[jax.Array, "C D"]:
    """The clusters of a folder.

    Args:
        target: fingerprint of the target's weights, which the clusters have to be of; any where None.

    Raises:
        ValueError: a folder that holds none, is damaged, or is of another target.
    """
    folder = Path(folder)
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        said, digest = str(record["target"]), str(record["sha256"])
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']}, where {FORMAT} is read")
        content = (folder / ARRAYS).read_bytes()
        if hashlib.sha256(content).hexdigest() != digest:
            raise ValueError(f"{ARRAYS} is truncated or was changed")
        clusters = safetensors.numpy.load(content)["clusters"]
        if clusters.ndim != 2 or not np.all(np.isfinite(clusters)):
            raise ValueError(f"{ARRAYS} holds no finite directions")
    except (OSError, KeyError, TypeError, ValueError, safetensors.SafetensorError) as error:
        raise ValueError(
            f"{folder} holds no readable clusters ({error}); make them with scripts/build_clusters.py"
        ) from None
    if target is not None and said != target:
        raise ValueError(
            f"{folder} was made of another target (weights {said[:12]}, these are {target[:12]}); "
            "make one of this target with scripts/build_clusters.py"
        )
    return jnp.asarray(clusters, jnp.float32)


def write_clusters(folder: Path, clusters: Float[np.ndarray, "C D"], *, target: str, card: Mapping[str, Any]) -> None:
    """Write an artifact's two files."""
    content = safetensors.numpy.save({"clusters": np.ascontiguousarray(clusters, np.float32)})
    (folder / ARRAYS).write_bytes(content)
    record = {
        "format": FORMAT,
        "target": target,
        "clusters": clusters.shape[0],
        "width": clusters.shape[1],
        "sha256": hashlib.sha256(content).hexdigest(),
        "card": dict(card),
    }
    (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


__all__ = ["ARRAYS", "RECORD", "read_clusters", "write_clusters"]
