"""No draft: the round is a plain decoding step."""

import functools

import jax.numpy as jnp

from jaxspec.contracts import FREE, DraftSource, EngineParams, Proposal, View
from jaxspec.typing import PyTree, Rows


@functools.lru_cache(maxsize=64)
def none(*, lookahead: int) -> DraftSource:
    """Source 0 of every setup: proposes nothing, costs nothing."""

    most = lookahead

    def propose(params: EngineParams, view: View, state: PyTree, lookahead: Rows) -> tuple[Proposal, PyTree]:
        del params, state, lookahead
        return empty_proposal(view.length.shape[0], most), ()

    return DraftSource(
        name="none",
        cost=FREE,
        init=lambda rows, capacity, dtype: (),
        propose=propose,
        observe=lambda state, scratch, view, ran, verdict: state,
    )


def empty_proposal(rows: int, lookahead: int) -> Proposal:
    """A proposal of no drafts, as point masses."""
    zeros = jnp.zeros(rows, jnp.int32)
    return Proposal(
        tokens=jnp.zeros((rows, lookahead), jnp.int32),
        count=zeros,
        q_log=None,
        sampled=jnp.zeros(rows, bool),
        match=zeros,
        confidence=jnp.ones((rows, lookahead), jnp.float32),
    )
