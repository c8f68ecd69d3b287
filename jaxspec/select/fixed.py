"""One source, one lookahead, always."""

import functools

import jax.numpy as jnp

from jaxspec.contracts import Choice, Selector, Signals
from jaxspec.typing import PyTree


@functools.lru_cache(maxsize=256)
def fixed(source: int, lookahead: int) -> Selector:
    """Choose `source` (its index in the setup) with `lookahead` drafts every round; 0 is plain decoding. Static."""

    def choose(params: PyTree, state: PyTree, signals: Signals) -> Choice:
        del params, state
        rows = len(signals.active)
        return Choice(jnp.full(rows, source, jnp.int32), jnp.full(rows, lookahead, jnp.int32))

    return Selector("fixed", lambda rows, sources: (), choose, lambda params, state, *seen: state)
