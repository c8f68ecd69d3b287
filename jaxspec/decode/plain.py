"""One token a step: the definition that everything else is compared with."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxspec.contracts import EngineParams, Setup
from jaxspec.decode.state import State, on_mesh
from jaxspec.models.windows import in_branch
from jaxspec.outcome import LENGTH, RUNNING, STOP
from jaxspec.sampling import History, gumbel, penalise, pick, token_logprobs, warp
from jaxspec.sharding import constrain


@on_mesh
def plain_step(setup: Setup, params: EngineParams, state: State) -> State:
    """Every running row's next token: penalise, warp, argmax(log p + Gumbel(seed, position)); argmax at T = 0."""
    rows = jnp.arange(len(state.length))
    active = state.outcome == RUNNING
    pending = state.tokens[rows, state.length - 1][:, None]
    position = (state.length - 1)[:, None]
    itself = jnp.ones((len(rows), 1, 1), bool)
    forward = functools.partial(setup.target.forward, params.target, pending, position, itself, state.cache)
    out = in_branch(forward, jnp.any(active))
    request = state.request
    history = History(state.tokens, state.length, request.prompt_length)
    logits = penalise(out.logits, request.warpers, history, pending, itself, request.stop_ids, setup.vocab_size)

    def sampled() -> jax.Array:
        noise = gumbel(request.seed, state.length[:, None], logits.shape[-1])
        return pick(warp(logits, request.warpers), noise)

    token = jax.lax.cond(jnp.any(request.warpers.temperature > 0), sampled, lambda: jnp.argmax(logits, -1))[:, 0]
    token = token.astype(jnp.int32)
    at = jnp.where(active, state.length, state.tokens.shape[1])
    length = state.length + active.astype(jnp.int32)
    stopped = jnp.any(token[:, None] == request.stop_ids, axis=1)
    ended = jnp.where(stopped, STOP, jnp.where(length >= request.limit, LENGTH, RUNNING))
    logprobs = state.logprobs
    if logprobs is not None:
        fresh = token_logprobs(out.logits, token[:, None], setup.vocab_size)[:, 0]
        logprobs = logprobs.at[rows, at].set(fresh, mode="drop")
    fresh = dataclasses.replace(
        state,
        tokens=state.tokens.at[rows, at].set(token, mode="drop"),
        length=length,
        outcome=jnp.where(active, ended, state.outcome),
        logprobs=logprobs,
        cache=setup.target.commit(state.cache, out.window, None, active.astype(jnp.int32)),
        rounds=state.rounds + 1,
    )
    return constrain(fresh, setup.mesh)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def plain_loop(setup: Setup, params: EngineParams, state: State, steps: jax.Array | int) -> State:
    """Steps until every row has ended, `steps` at the most; `state` is donated."""

    def going(carry: tuple[jax.Array, State]) -> jax.Array:
        done, state = carry
        return (done < steps) & jnp.any(state.outcome == RUNNING)

    def body(carry: tuple[jax.Array, State]) -> tuple[jax.Array, State]:
        return carry[0] + 1, plain_step(setup, params, carry[1])

    return constrain(jax.lax.while_loop(going, body, (jnp.int32(0), state))[1], setup.mesh)
