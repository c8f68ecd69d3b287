"""Prompts in, tokens out: state, prefill and the chunked loop behind one call."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxspec.buckets import PREFILL
from jaxspec.contracts import EngineParams, Request, Setup
from jaxspec.decode.loop import Progress, loop
from jaxspec.decode.prefill import prefill
from jaxspec.decode.request import make_request, needed_capacity, pad_prompts
from jaxspec.decode.state import State, init_state
from jaxspec.outcome import FINISH_REASON, RUNNING
from jaxspec.sharding import place
from jaxspec.telemetry import Counters

CHUNK = 8
"""Rounds between two looks of the host."""


@dataclasses.dataclass(frozen=True)
class Generation:
    """What a call produced, on the host; one entry a row, in the order of the prompts."""

    tokens: list[list[int]]  # output ids, end ids included
    finish_reason: list[str]  # "stop" | "length" | "interrupted"
    logprobs: list[list[float]] | None  # of the output tokens under the model's own softmax, where the setup keeps them
    counters: Counters  # numpy
    rounds: int
    prefill_seconds: float
    seconds: float  # of the rounds, prefill and compilation apart


def start(
    setup: Setup,
    params: EngineParams,
    prompts: Sequence[Sequence[int]],
    request: Request,
    *,
    capacity: int | None = None,
    dtype: DTypeLike | None = None,
) -> State:
    """A prefilled state for `prompts`, on the setup's mesh.

    Args:
        capacity: tokens a row's buffers hold; the smallest bucket that fits where None. Static (recompiles).
        dtype: of the caches; that of the target's largest parameter where None.

    Raises:
        ValueError: a prompt and its max_new_tokens that do not fit.
    """
    if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"dtype of the caches is {dtype!r}; give a floating-point type, float32 or bfloat16")
    lengths, limits = np.asarray(request.prompt_length), np.asarray(request.limit)
    sizes = set(zip(lengths.tolist(), limits.tolist(), strict=True))
    need = max(needed_capacity(setup, length, limit - length, capacity) for length, limit in sizes)
    headroom = max(PREFILL[-1], setup.windows[-1])
    tokens = jax.device_put(pad_prompts(prompts, need))
    state = _fresh(setup, tokens, request, headroom=headroom, dtype=jnp.dtype(dtype or _dtype(params)))
    return prefill(setup, params, place(state, setup.mesh), longest=int(lengths.max()))


_fresh = jax.jit(init_state, static_argnames=("setup", "headroom", "dtype"))  # one program, not one an array


def _dtype(params: EngineParams) -> DTypeLike:
    leaves = jax.tree.leaves(params.target)
    if not leaves:
        raise ValueError("the target has no parameters; pass them as EngineParams(target=...)")
    return max(leaves, key=lambda leaf: leaf.size).dtype


def stream(
    setup: Setup,
    params: EngineParams | Callable[[], EngineParams],
    state: State,
    *,
    chunk: int = CHUNK,
    halt: Callable[[], np.ndarray] | None = None,
) -> Iterator[Progress]:
    """Progress after every `chunk` rounds, one chunk late: the device runs the next while the host reads this one.

    Args:
        params: for all chunks, or asked for before every chunk.
        state: prefilled; donated.
        halt: asked before every chunk which rows to end, bool [B].
    """
    nobody = np.zeros(len(state.length), bool)
    rounds = min(2, chunk)  # the first text comes soon, later looks are rarer
    given = params if callable(params) else lambda: params
    state, seen = loop(setup, given(), state, rounds, nobody)
    while True:
        rounds = min(2 * rounds, chunk)
        state, ahead = loop(setup, given(), state, rounds, nobody if halt is None else halt())
        yield seen
        if not np.any(np.asarray(seen.outcome) == RUNNING):
            return
        seen = ahead


def generate(
    setup: Setup,
    params: EngineParams,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int | Sequence[int],
    capacity: int | None = None,
    dtype: DTypeLike | None = None,
    **options: Any,
) -> Generation:
    """Generate for every prompt and wait for the end.

    Args:
        setup: static (recompiles); from `make_setup`.
        params: traced; the target's parameters and each draft's.
        prompts: token ids, one sequence a row; ragged.
        max_new_tokens: traced; tokens to generate at the most, exact.
        capacity: static (recompiles); tokens a row's buffers hold, chosen where None.
        options: traced; those of `make_request`: stop_ids, seed, warp, max_lookahead, draft_temperature,
            draft_confidence.

    Raises:
        ValueError: bad input, before anything is compiled.
    """
    request = make_request(setup, prompts, max_new_tokens=max_new_tokens, **options)
    began = time.perf_counter()
    state = start(setup, params, prompts, request, capacity=capacity, dtype=dtype)
    state, _ = loop(setup, params, state, 0, np.zeros(len(prompts), bool))  # compiles, runs no round
    jax.block_until_ready(state)
    ready = time.perf_counter()
    *_, last = stream(setup, params, state, chunk=1 << 30)
    return collect(last, request, prefill_seconds=ready - began, seconds=time.perf_counter() - ready)


def collect(last: Progress, request: Request, *, prefill_seconds: float, seconds: float) -> Generation:
    """The host's copy of a finished (or interrupted) run."""
    seen: Progress = jax.device_get(last)
    begin = np.asarray(request.prompt_length)
    spans = [slice(int(a), int(b)) for a, b in zip(begin, seen.length, strict=True)]
    logprobs = None
    if seen.logprobs is not None:
        logprobs = [[float(x) for x in row[span]] for row, span in zip(seen.logprobs, spans, strict=True)]
    return Generation(
        tokens=[[int(t) for t in row[span]] for row, span in zip(seen.tokens, spans, strict=True)],
        finish_reason=[FINISH_REASON[int(code)] for code in seen.outcome],
        logprobs=logprobs,
        counters=seen.counters,
        rounds=int(seen.rounds),
        prefill_seconds=prefill_seconds,
        seconds=seconds,
    )
