"""What tells one model's weights from another's, whatever file they came from."""

import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.checkpoint.tensors import LazyTensor
from jaxspec.models import ModelConfig, unfuse

SAMPLES = 1024
"""Values of a tensor that are read at the most, at equal steps."""


def fingerprint(config: ModelConfig, params: Mapping[str, jax.Array | np.ndarray | LazyTensor]) -> str:
    """SHA-256 (hex) over names, shapes and a sample of each parameter's values in bfloat16.

    The same for a GGUF file, the folder it was converted to, and float32 or bfloat16 weights of it in memory; fused or
    not, on one device or split over several. A sample, so that it takes milliseconds: it tells models apart, it is no
    proof against an adversary.

    Args:
        params: of the model, [out, in] matrices by their names without "model."; or the lazy tensors of a checkpoint,
            of which one at a time is read.
    """
    found: dict[str, bytes] = {}
    for name, tensor in params.items():
        leaf: Any = tensor.read() if isinstance(tensor, LazyTensor) else tensor
        parts = unfuse(config, {name: leaf})[1]  # one matrix at a time is held twice
        found |= {part: _sample(part, each) for part, each in parts.items()}
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(found[name])
    return digest.hexdigest()


def _sample(name: str, leaf: Any) -> bytes:
    places = np.arange(0, leaf.size, max(1, leaf.size // SAMPLES))[:SAMPLES]
    sample = np.asarray(jax.device_get(leaf[np.unravel_index(places, leaf.shape)])).astype(jnp.bfloat16)
    return f"{name} {tuple(leaf.shape)}\n".encode() + sample.tobytes()
