"""The loop: rounds in one compiled `lax.while_loop` with donated state, in chunks so that text can stream."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxspec.contracts import EngineParams, Setup
from jaxspec.decode.state import State
from jaxspec.decode.step import step
from jaxspec.outcome import HALTED, RUNNING
from jaxspec.sharding import constrain
from jaxspec.telemetry import Counters
from jaxspec.typing import PyTree, RowMask, Rows


class Progress(NamedTuple):
    """Copies of what the host wants to see, so that the state itself can be donated to the next chunk."""

    tokens: Int[Array, "B S"]
    length: Rows
    outcome: Rows
    logprobs: Float[Array, "B S"] | None
    counters: Counters
    rounds: Int[Array, ""]
    told: dict[str, Array] | None  # what the selector saw and expected in the last round, [B] or [B, N]; None: nothing
    domain: Rows | None = None  # cluster that the text is nearest to; None where the selector has no clusters
    learnt: PyTree = None  # what the selector has to begin the next call with; None: nothing


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def loop(
    setup: Setup, params: EngineParams, state: State, rounds: jax.Array | int, halt: RowMask
) -> tuple[State, Progress]:
    """Rounds until every row has ended, `rounds` at the most.

    Args:
        setup: static (recompiles).
        params: traced.
        state: traced and donated: its buffers are reused, the argument is gone afterwards.
        rounds: traced; rounds to run at the most.
        halt: traced; rows the caller ends now, for example at a stop string.
    """
    state = _halt(state, halt)

    def going(carry: tuple[jax.Array, State]) -> jax.Array:
        done, state = carry
        return (done < rounds) & jnp.any(state.outcome == RUNNING)

    def body(carry: tuple[jax.Array, State]) -> tuple[jax.Array, State]:
        done, state = carry
        return done + 1, step(setup, params, state)[0]

    _, state = jax.lax.while_loop(going, body, (jnp.int32(0), state))
    learnt = None if setup.selector.carry is None else setup.selector.carry(params.selector, state.selector)
    return constrain(state, setup.mesh), progress(state)._replace(learnt=learnt)


def progress(state: State) -> Progress:
    """What the host wants to see of a state."""
    return Progress(
        state.tokens,
        state.length,
        state.outcome,
        state.logprobs,
        state.counters,
        state.rounds,
        getattr(state.selector, "told", None),
        None if state.gist is None else state.seen.domain,
    )


def _halt(state: State, halt: RowMask) -> State:
    outcome = jnp.where(halt & (state.outcome == RUNNING), HALTED, state.outcome)
    return dataclasses.replace(state, outcome=outcome)
