"""What is timed: a way to answer a prompt. Ours are the plain loop and the loop under each mode."""

import copy
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
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
        fixed = mode in ("fixed:none", *alone) or (head in alone and depth.isdecimal())
        if not (mode == "rule" or weighs(mode) or fixed):
            raise ValueError(
                f"mode {mode!r} is unknown; choose among rule, {', '.join(LEARNED)}, goodput:FOLDER, router:FOLDER, "
                "fixed:none and fixed:SOURCE:K "
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


def shared_capacity(made: Mapping[str, Setup], prompts: Sequence[Sequence[int]], max_new_tokens: int) -> int:
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


class Decoded(NamedTuple):
    """Answers of our engine to prompts side by side, numpy, timed on the host."""

    tokens: list[list[int]]  # output ids, a list a row
    seconds: float  # of the whole call
    decode_seconds: float  # after the prefill
    rounds: int
    counters: Counters


class Engine:
    """One of our ways to decode, and what it has learnt.

    A selector that learns is given this device's costs, measured here if they are not known, and goes on from call to
    call with what it has learnt.
    """

    def __init__(self, pipeline: Pipeline, name: str, setup: Setup, ask: Ask, *, rows: int, capacity: int):
        """The plain loop where `name` is "plain", else a mode."""
        self.name, self.setup, self.ask, self.capacity, self.dtype = name, setup, ask, capacity, pipeline.dtype
        self.params, self.price = pipeline.params, None
        if weighs(name):
            begun = _with(pipeline, prior=pipeline.begin(name, setup))
            self.params, priced = begun.priced(setup, rows=rows, capacity=capacity, prompt_ids=[0] * 32)
            self.price = price_of(priced.table, setup)
        self.options = {
            "stop_ids": ask.stop_ids,
            "seed": ask.seed,
            "warp": warpers(rows, temperature=ask.temperature, vocab_size=pipeline.vocab_size),
            **pinned(name, setup),
        }
        self.nobody = np.zeros(rows, bool)

    def answer(self, prompts: Sequence[Sequence[int]], max_new_tokens: int, *, rounds: int = _FOREVER) -> Decoded:
        """Answer as many prompts as there are rows, in so many rounds at the most."""
        began = time.perf_counter()
        request = decode.make_request(self.setup, prompts, max_new_tokens=max_new_tokens, **self.options)
        state = decode.start(self.setup, self.params, prompts, request, capacity=self.capacity, dtype=self.dtype)
        jax.block_until_ready(state)
        ready = time.perf_counter()
        learnt = None
        if self.name == PLAIN:
            last = decode.plain_loop(self.setup, self.params, state, rounds)
        else:
            _, last = decode.loop(self.setup, self.params, state, rounds, self.nobody)
            learnt = last.learnt
        tokens, length, done, counters = jax.device_get((last.tokens, last.length, last.rounds, last.counters))
        ended = time.perf_counter()
        if learnt is not None and weighs(self.name):  # as a pipeline does from call to call
            selector = self.params.selector._replace(prior=learnt)
            self.params = dataclasses.replace(self.params, selector=selector)
        made = [row[len(prompt) : n].tolist() for row, prompt, n in zip(tokens, prompts, length, strict=True)]
        return Decoded(made, ended - began, ended - ready, int(done), counters)


def ours(pipeline: Pipeline, name: str, setup: Setup, ask: Ask, *, capacity: int) -> Contender:
    """Our engine under a setup, one prompt at a time; the plain loop where `name` is "plain"."""
    engine = Engine(pipeline, name, setup, ask, rows=1, capacity=capacity)

    def run(prompt: Sequence[int], max_new_tokens: int) -> Run:
        done = engine.answer([prompt], max_new_tokens)
        counters = None if name == PLAIN else done.counters
        return Run(done.tokens[0], done.seconds, done.decode_seconds, len(done.tokens[0]), done.rounds, counters)

    return Contender(name, PLAIN if name == PLAIN else MODE, run, setup.names, setup.windows, engine.price)
