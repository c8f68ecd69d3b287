"""The prompt enters the target's cache in padded chunks; drafts catch up on their own when they are chosen."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxspec.buckets import PREFILL, bucket
from jaxspec.contracts import EngineParams, Setup
from jaxspec.decode.state import State, on_mesh
from jaxspec.models.windows import in_branch
from jaxspec.sharding import constrain
from jaxspec.tree import ancestors, chain


def plan(tokens: int, chunks: tuple[int, ...] = PREFILL) -> list[tuple[int, int]]:
    """(start, width) of the chunks that hold `tokens` tokens: full ones first, padding in the last one alone.

    tokens 340, chunks 16 64 256:   (0, 256) (256, 64) (320, 64)
    """
    out, start = [], 0
    while start < tokens:
        rest = tokens - start
        full = [width for width in chunks[1:] if width <= rest]
        width = full[-1] if full else bucket(rest, chunks)
        out.append((start, width))
        start += width
    return out


def prefill(setup: Setup, params: EngineParams, state: State, *, longest: int) -> State:
    """Put all prompt tokens but the last one into the target's cache; the last is the first round's pending token.

    Args:
        state: from `init_state`; donated.
        longest: the longest prompt's length, in tokens; a host integer, it decides how many chunks run.
    """
    for start, width in plan(longest - 1):
        state = _chunk(setup, params, state, jnp.int32(start), width)
    return state


@functools.partial(jax.jit, static_argnums=(0, 4), donate_argnums=2)
@on_mesh
def _chunk(setup: Setup, params: EngineParams, state: State, start: jax.Array, width: int) -> State:
    rows = state.tokens.shape[0]
    tokens = jax.lax.dynamic_slice_in_dim(state.tokens, start, width, axis=1)
    positions = jnp.broadcast_to(start + jnp.arange(width, dtype=jnp.int32)[None, :], (rows, width))
    mask = jnp.broadcast_to(ancestors(chain(width))[None], (rows, width, width))
    count = jnp.clip(state.length - 1 - start, 0, width)
    taken = functools.partial(setup.target.forward, params.target, tokens, positions, mask, state.cache, logits=False)
    window = in_branch(lambda: taken().window, jnp.any(count > 0))
    cache = setup.target.commit(state.cache, window, None, count)
    return constrain(dataclasses.replace(state, cache=cache), setup.mesh)
