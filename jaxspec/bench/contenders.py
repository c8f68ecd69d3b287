"""What is timed: a way to answer a prompt. Ours are the plain loop and the loop under each mode."""

import copy
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxspec import decode
from jaxspec.contracts import Setup
from jaxspec.costs import price_of
from jaxspec.decode.config import LEARNED, check_select
from jaxspec.decode.request import needed_capacity
from jaxspec.pipeline import Pipeline
from jaxspec.sampling import warpers
from jaxspec.select import weighs
from jaxspec.telemetry import Counters, Price

PLAIN, MODE, PEER = "plain", "mode", "peer"

PINNED = "rule"
"""Selector of the program that fixed modes share; it never gets to choose."""

_FOREVER = 1 << 30


@dataclasses.dataclass(frozen=True)
class Ask:
    """What every contender is asked for."""

    stop_ids: tuple[int, ...]
    temperature: float = 0.0
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Run:
    """One answer, timed on the host."""

    tokens: list[int]  # output ids, end ids included
    seconds: float  # of the whole call: prompt ids in, output ids out, prefill included
    decode_seconds: float  # after the prefill
    decode_tokens: int  # output tokens that `decode_seconds` made
    rounds: int  # target passes that made output tokens
    counters: Counters | None = None  # numpy; None where nothing drafts or nobody counts


class Contender(NamedTuple):
    """Somebody who answers prompts, one at a time."""

    name: str
    kind: str  # PLAIN | MODE | PEER
    run: Callable[[Sequence[int], int], Run]  # (prompt ids, max_new_tokens)
    sources: tuple[str, ...] = ()
    windows: tuple[int, ...] = ()
    price: Price | None = None  # what its rounds cost; None where no table is at hand


def check_modes(modes: Sequence[str], drafts: Sequence[str]) -> None:
    """Refuse a mode that no selector stands for, before anything is loaded."""
    alone = [f"fixed:{draft}" for draft in drafts]
    for mode in modes:
        head, _, depth = mode.rpartition(":")
        if mode not in ("rule", *LEARNED, "fixed:none", *alone) and not (head in alone and depth.isdecimal()):
            raise ValueError(
                f"mode {mode!r} is unknown; choose among rule, {', '.join(LEARNED)}, fixed:none and fixed:SOURCE:K "
                f"with SOURCE among the drafts {', '.join(drafts) or '(none was given)'}"
            )


def setups(pipeline: Pipeline, modes: Sequence[str], *, sampled: bool) -> dict[str, Setup]:
    """Setup of each mode, and of the plain loop under the name "plain"; every mode has all draft sources at hand.

    Fixed modes pin their source in the request, so that one program serves all of them.

    Raises:
        ValueError: a lookahead that no window holds.
    """
    bare = _with(pipeline, drafts=(), select="rule")
    found = {PLAIN: bare.setup(sampled=sampled, logprobs=False)}
    for mode in modes:
        found[mode] = _with(pipeline, select=PINNED if mode.startswith("fixed:") else mode).setup(
            sampled=sampled, logprobs=False
        )
    return found


def _with(pipeline: Pipeline, **changes: object) -> Pipeline:
    changed = copy.copy(pipeline)
    vars(changed).update(changes)
    return changed


def shared_capacity(made: dict[str, Setup], prompts: Sequence[Sequence[int]], max_new_tokens: int) -> int:
    """The one capacity that holds every prompt under every setup, so that each setup compiles once."""
    return max(needed_capacity(setup, len(prompt), max_new_tokens) for setup in made.values() for prompt in prompts)


def pinned(mode: str, setup: Setup) -> dict[str, Any]:
    """What a request says so that every round is the fixed mode's; nothing for other modes.

    fixed:feature:3   ->   source feature, max_lookahead 3
    """
    if not mode.startswith("fixed:"):
        return {}
    choice = check_select(mode, setup.names[1:], setup.lookahead)
    assert choice is not None
    return {"source": setup.names[choice[0]], "max_lookahead": choice[1]}


def ours(pipeline: Pipeline, name: str, setup: Setup, ask: Ask, *, capacity: int) -> Contender:
    """Our engine under a setup; the plain loop where `name` is "plain".

    A selector that learns is given this device's costs, measured here if they are not known, and goes on from prompt to
    prompt with what it has learnt.
    """
    warp = warpers(1, temperature=ask.temperature, vocab_size=pipeline.vocab_size)
    nobody = np.zeros(1, bool)
    learns = weighs(name)
    params, price = pipeline.params, None
    if learns:
        params, priced = pipeline.priced(setup, rows=1, capacity=capacity, prompt_ids=[0] * 32)
        price = price_of(priced.table, setup)
    pin = pinned(name, setup)

    def run(prompt: Sequence[int], max_new_tokens: int) -> Run:
        nonlocal params
        began = time.perf_counter()
        request = decode.make_request(
            setup, [prompt], max_new_tokens=max_new_tokens, stop_ids=ask.stop_ids, seed=ask.seed, warp=warp, **pin
        )
        state = decode.start(setup, params, [prompt], request, capacity=capacity, dtype=pipeline.dtype)
        jax.block_until_ready(state)
        ready = time.perf_counter()
        if name == PLAIN:
            last = decode.plain_loop(setup, params, state, _FOREVER)
        else:
            _, last = decode.loop(setup, params, state, _FOREVER, nobody)
        seen = jax.device_get((last.tokens, last.length, last.rounds, last.counters))
        ended = time.perf_counter()
        made = [int(token) for token in seen[0][0][len(prompt) : int(seen[1][0])]]
        counters = None if name == PLAIN else seen[3]
        if learns and last.learnt is not None:  # as a pipeline does from call to call
            params = dataclasses.replace(params, selector=params.selector._replace(prior=last.learnt))
        return Run(made, ended - began, ended - ready, len(made), int(seen[2]), counters)

    return Contender(name, PLAIN if name == PLAIN else MODE, run, setup.names, setup.windows, price)
