"""Rotary frequencies of a config, stretched as its scaling says."""

import jax
import jax.numpy as jnp

from jaxspec.models.config import ModelConfig


def frequencies(config: ModelConfig, positions: jax.Array, *, local: bool) -> tuple[jax.Array, float]:
    """Inverse frequencies [R] in radians a token and the factor on cos and sin.

    Args:
        local: the sliding-window layers of a family with its own base for them.
    """
    size = int(config.head_dim * config.rotary_fraction)
    theta = config.rope_local_theta if local and config.rope_local_theta is not None else config.rope_theta
    inverse = 1.0 / (theta ** (jnp.arange(0, size, 2, dtype=jnp.float32) / size))
    return inverse, 1.0
