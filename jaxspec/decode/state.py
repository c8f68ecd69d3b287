"""What evolves from round to round: one frozen pytree, batch axis first, donated to every call of the loop."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxspec.contracts import Request, Seen, Setup, View
from jaxspec.outcome import RUNNING
from jaxspec.sharding import within
from jaxspec.telemetry import Counters, init_counters
from jaxspec.typing import PyTree, Rows

Result = TypeVar("Result")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """Rows in the middle of being generated."""

    # evolving
    tokens: Int[Array, "B S"]  # int32, prompt and output; entries at and beyond `length` mean nothing
    length: Rows  # int32, known tokens
    outcome: Rows  # int32, a code of `jaxspec.outcome`
    logprobs: Float[Array, "B S"] | None  # float32, of the output tokens at their positions; None unless asked for
    # buffers and cursors
    cache: PyTree  # the target's: keys and values of the first length - 1 tokens
    sources: tuple[PyTree, ...]  # each draft source's own state
    selector: PyTree
    seen: Seen  # how the target stood where it made each row's last token
    gist: Float[Array, "B D"] | None  # float32, running mean of hidden states; None where the selector has no clusters
    # what was asked for
    request: Request
    # counters
    counters: Counters
    rounds: Int[Array, ""]  # int32, rounds run


def init_state(
    setup: Setup, tokens: Int[Array, "B S"], request: Request, *, headroom: int, dtype: DTypeLike = jnp.float32
) -> State:
    """State before prefill: nothing is in any cache.

    Args:
        tokens: [B, S] int32 prompts, left-aligned; S is the capacity in tokens.
        headroom: widest window that will be committed at once, in tokens.
        dtype: of the caches.
    """
    rows, capacity = tokens.shape
    tokens, length, request = jax.tree.map(jnp.copy, (tokens, request.prompt_length, request))  # the state is donated
    return State(
        tokens=tokens,
        length=length,
        outcome=jnp.full(rows, RUNNING, jnp.int32),
        logprobs=jnp.zeros((rows, capacity), jnp.float32) if setup.logprobs else None,
        cache=setup.target.init_cache(rows, capacity, headroom=headroom, dtype=dtype),
        sources=tuple(source.init(rows, capacity, dtype) for source in setup.sources),
        selector=setup.selector.init(rows, len(setup.sources)),
        seen=unseen(rows),
        gist=jnp.zeros((rows, setup.target.config.hidden_size), jnp.float32) if setup.selector.clusters else None,
        request=request,
        counters=init_counters(rows, len(setup.sources), setup.lookahead, len(setup.windows)),
        rounds=jnp.int32(0),
    )


def unseen(rows: int) -> Seen:
    """Before the first round."""
    zeros = jnp.zeros((3, rows), jnp.float32)
    return Seen(zeros[0], zeros[1], zeros[2], jnp.full(rows, -1, jnp.int32))


def on_mesh(function: Callable[..., Result]) -> Callable[..., Result]:
    """`function(setup, ...)` traced with the setup's mesh known to the commits in it."""

    @functools.wraps(function)
    def traced(setup: Setup, *args: Any) -> Result:
        with within(setup.mesh):
            return function(setup, *args)

    return traced


def look(state: State) -> View:
    """What the parts of a round may read."""
    return View(state.tokens, state.length, state.outcome, state.outcome == RUNNING, state.request, state.cache)
