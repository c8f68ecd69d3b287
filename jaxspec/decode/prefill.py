"""The prompt enters the target's cache in padded chunks; drafts catch up on their own when they are chosen."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxspec.buckets import PREFILL
from jaxspec.contracts import EngineParams, Features, Setup
from jaxspec.decode.state import State, on_mesh
from jaxspec.drafts.bank import absorb
from jaxspec.models.tapped import tapped
from jaxspec.models.windows import in_branch
from jaxspec.sharding import constrain
from jaxspec.tree import ancestors, chain
from jaxspec.typing import PyTree

OVERHEAD = 40
"""A chunk costs what so many tokens more in it would: 16, 64 and 256 tokens take 58, 94 and 285 ms (SmolLM2, CPU)."""


def plan(tokens: int, chunks: tuple[int, ...] = PREFILL) -> list[tuple[int, int]]:
    """(start, width) of the cheapest chunks that hold `tokens` tokens; the last one alone may be padded.

    tokens 340, chunks 16 64 256:   (0, 256) (256, 64) (320, 64)
    tokens 250:                     (0, 256)
    """
    full, rest = divmod(tokens, chunks[-1])
    widths = (chunks[-1],) * full + _cheapest(rest, chunks)
    return [(sum(widths[:index]), width) for index, width in enumerate(widths)]


@functools.lru_cache(maxsize=4096)
def _cheapest(tokens: int, chunks: tuple[int, ...]) -> tuple[int, ...]:
    if tokens <= 0:
        return ()
    ways = ((width, *_cheapest(tokens - width, chunks)) for width in reversed(chunks))
    return min(ways, key=lambda widths: sum(widths) + OVERHEAD * len(widths))


def prefill(setup: Setup, params: EngineParams, state: State, *, longest: int) -> State:
    """Put all prompt tokens but the last one into the target's cache; the last is the first round's pending token.

    Args:
        state: from `init_state`; donated.
        longest: the longest prompt's length, in tokens; a host integer, it decides how many chunks run.
    """
    for start, width in plan(longest - 1):
        state = _chunk(setup, params, state, jnp.int32(start), width, start == 0)
    return state


@functools.partial(jax.jit, static_argnums=(0, 4, 5), donate_argnums=2)
@on_mesh
def _chunk(setup: Setup, params: EngineParams, state: State, start: jax.Array, width: int, first: bool) -> State:
    """One chunk. The first reads an empty cache of one slot in place of the row's own, where nothing lies yet.

    Attending to the empty slots of 512 took a quarter of a chunk of 256 tokens (SmolLM2 on a CPU).
    """
    rows = state.tokens.shape[0]
    tokens = jax.lax.dynamic_slice_in_dim(state.tokens, start, width, axis=1)
    positions = jnp.broadcast_to(start + jnp.arange(width, dtype=jnp.int32)[None, :], (rows, width))
    mask = jnp.broadcast_to(ancestors(chain(width))[None], (rows, width, width))
    count = jnp.clip(state.length - 1 - start, 0, width)
    past = setup.target.init_cache(rows, 1, headroom=1, dtype=_dtype(state.cache)) if first else state.cache

    def taken() -> tuple[PyTree, Features]:
        inputs = (setup.target, params.target, tokens, positions, mask, past)
        out, features = tapped(*inputs, taps=setup.taps, logits=False)
        return out.window, features

    window, features = in_branch(taken, jnp.any(count > 0))
    cache = setup.target.commit(state.cache, window, None, count)
    sources = absorb(setup, state.sources, features, positions[:, 0], count)
    return constrain(dataclasses.replace(state, cache=cache, sources=sources), setup.mesh)


def _dtype(cache: PyTree) -> jnp.dtype:
    """Of the keys and values: the first floating-point leaf's; a model that keeps none is asked for float32."""
    found = (leaf.dtype for leaf in jax.tree.leaves(cache) if jnp.issubdtype(leaf.dtype, jnp.floating))
    return next(found, jnp.dtype(jnp.float32))
