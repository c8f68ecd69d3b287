"""Padded sizes: every dynamic length is rounded up to one of a few static ones, so nothing recompiles."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

WINDOWS = (1, 4, 8, 16)
"""Default window widths: the pending token and lookahead 0, 3, 7, 15.

A width of 2 is not among them: it costs what 4 costs (on a CPU 44 and 45 ms, beside 32 ms for 1).
"""

PREFILL = (16, 64, 256)
"""Default prefill chunk widths, in tokens."""


def bucket_index(size: jax.Array, buckets: Sequence[int]) -> jax.Array:
    """Index of the smallest bucket that holds a traced `size` (int32 scalar); the last bucket where none does.

    buckets 1 4 8, size 3:  (1 < 3) + (4 < 3) = 1  ->  buckets[1] = 4
    """
    small = jnp.asarray(buckets[:-1], jnp.int32) < size
    return jnp.sum(small, dtype=jnp.int32)


def capacity_bucket(size: int, multiple: int = 128) -> int:
    """Cache slots for `size` tokens: powers of two times `multiple` and their one-and-a-halves, so few shapes compile.

    100 -> 128, 130 -> 256, 300 -> 384, 600 -> 768
    """
    width = multiple
    while True:
        for candidate in (width, width * 3 // 2):
            if candidate >= size and candidate % multiple == 0:
                return candidate
        width *= 2
