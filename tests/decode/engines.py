"""Engines that tests share, compiled once a session, and how to run them with a plan."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec import decode
from jaxspec.decode.state import State
from jaxspec.drafts import lm, lookup
from jaxspec.outcome import FINISH_REASON
from jaxspec.select import SelectorParams
from tests.decode import tiny
from tests.decode.automata import automaton, random_table, related_table
from tests.decode.schedule import ROUNDS, Plan, always, scheduled, script

FOREVER = 1 << 30

TABLE_VOCAB = 8
TABLE_ROWS = 32
TINY_ROWS = 4


@dataclasses.dataclass(frozen=True)
class Engine:
    """A setup with a scheduled selector, the plain loop's own setup, and their parameters."""

    setup: decode.Setup
    plain: decode.Setup
    params: decode.EngineParams
    capacity: int

    def source(self, name: str) -> int:
        return self.setup.names.index(name)


def look_up(lookahead: int) -> decode.DraftSource:
    """Lookup with settings that do not follow the package's own."""
    return lookup(max_match=4, min_match=2, lookahead=lookahead)


@functools.cache
def tiny_engine(verify: str, *, lookahead: int = 4, logprobs: bool = True) -> Engine:
    """Real caches: a target of two layers with lookup, its first layer, a smaller model and a script as drafts."""
    model, params = tiny.model_of(tiny.TARGET, 0, 1.6)
    draft, draft_params = tiny.model_of(tiny.DRAFT, 1, 0.5)
    setup = decode.make_setup(
        model,
        drafts=(look_up(lookahead), "exit:1", ("lm:d", draft), script(lookahead)),
        select=scheduled(lookahead, model.config.vocab_size if verify == "rejection" else 0),
        verify=verify,
        lookahead=lookahead,
        windows=(1, 1 + lookahead),
        vocab_size=tiny.VOCAB,
        logprobs=logprobs,
    )
    return Engine(setup, plain_setup(model, tiny.VOCAB), decode.EngineParams(params, {"lm:d": draft_params}, ()), 256)


@functools.cache
def every_engine(verify: str, *, chosen: bool = True, lookahead: int = 4) -> Engine:
    """Every kind of source at once, one of which rides in the window, chosen by goodput, or else by a plan."""
    model, params = tiny.model_of(tiny.TARGET, 0, 1.6)
    draft, draft_params = tiny.model_of(tiny.DRAFT, 1, 0.5)
    setup = decode.make_setup(
        model,
        drafts=(look_up(lookahead), "suffix", "exit:1", ("lm:d", draft), "jacobi:3:3:4"),
        select="goodput" if chosen else scheduled(lookahead),
        verify=verify,
        lookahead=lookahead,
        windows=(1, 3, 1 + lookahead),
        vocab_size=tiny.VOCAB,
    )
    return Engine(setup, plain_setup(model, tiny.VOCAB), decode.EngineParams(params, {"lm:d": draft_params}, ()), 128)


@functools.cache
def table_engine(verify: str, *, lookahead: int = 5) -> Engine:
    """Tables for models: many rows, a known law, padding of three sizes; the second draft ends at 64 positions.

    The last source is faulty: its cache takes the last draft for one it has run.
    """
    vocab = TABLE_VOCAB
    target = random_table(vocab, 0, padded=2)
    drafts = {
        "lm:d": {"table": jnp.asarray(related_table(target, vocab, 1, padded=4))},
        "lm:short": {"table": jnp.asarray(related_table(target, vocab, 2, padded=0))},
    }
    drafts["lm:hole"] = drafts["lm:d"]
    model = automaton(vocab + 2)
    setup = decode.make_setup(
        model,
        drafts=(
            look_up(lookahead),
            ("lm:d", automaton(vocab + 4)),
            ("lm:short", automaton(vocab, max_positions=64)),
            script(lookahead),
            *([] if verify != "greedy" else [with_a_hole(automaton(vocab + 4), lookahead, vocab, vocab + 2)]),
        ),
        select=scheduled(lookahead),
        verify=verify,
        lookahead=lookahead,
        windows=(1, 2, 1 + lookahead) if verify == "greedy" else (1, 1 + lookahead),
        vocab_size=vocab,
        logprobs=True,
    )
    params = decode.EngineParams({"table": jnp.asarray(target)}, drafts, ())
    return Engine(setup, plain_setup(model, vocab), params, 256)


def with_a_hole(model: decode.LanguageModel, lookahead: int, vocab: int, width: int) -> decode.DraftSource:
    """A model draft that takes the last draft of a fully accepted round for one that is in its cache."""
    source = lm("lm:hole", model, lookahead=lookahead, vocab_size=vocab, vocab_width=width, verify="greedy")

    def observe(state, scratch, view, ran, verdict):
        after = source.observe(state, scratch, view, ran, verdict)
        missed = ran & (verdict.count > 1) & (after.length < view.length + verdict.count - 1)
        return after._replace(length=after.length + missed.astype(jnp.int32))

    return source._replace(observe=observe)


def small_engine(
    verify: str,
    drafts: Sequence[Any] | None = None,
    params: dict[str, Any] | None = None,
    *,
    table: np.ndarray | None = None,
    vocab: int = TABLE_VOCAB,
    lookahead: int = 3,
    version: int = 0,
    rounds: int = ROUNDS,
) -> Engine:
    """A table engine with few sources and two widths, for what needs a compiled program of its own.

    Another `version` is another program, for a test that has replaced a part of the engine.
    """
    table = random_table(vocab, 0, padded=2) if table is None else table
    model = automaton(len(table))
    setup = decode.make_setup(
        model,
        drafts=(script(lookahead),) if drafts is None else drafts,
        select=scheduled(lookahead, 0, version, rounds),
        verify=verify,
        lookahead=lookahead,
        windows=(1, 1 + lookahead),
        vocab_size=vocab,
        logprobs=True,
    )
    return Engine(
        setup, plain_setup(model, vocab), decode.EngineParams({"table": jnp.asarray(table)}, params or {}, ()), 64
    )


@functools.cache
def plain_setup(model: decode.LanguageModel, vocab: int) -> decode.Setup:
    """For the plain loop, greedy and sampled alike."""
    return decode.make_setup(
        model, drafts=(), select="fixed:none", verify="coupled", lookahead=0, vocab_size=vocab, logprobs=True
    )


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run left, on the host."""

    tokens: list[list[int]]
    reasons: list[str]
    logprobs: list[np.ndarray] | None
    state: State

    @property
    def log(self) -> Any:
        """The selector's state: a `Log` where a plan chose."""
        return self.state.selector

    @property
    def rounds(self) -> int:
        return int(self.state.rounds)


def began(
    engine: Engine, prompts: list[list[int]], plan: Plan | SelectorParams | None = None, script=None, **options: Any
) -> tuple[decode.EngineParams, State]:
    """Parameters and a prefilled state."""
    rows = len(prompts)
    request = decode.make_request(engine.setup, prompts, **options)
    state = decode.start(engine.setup, engine.params, prompts, request, capacity=engine.capacity)
    drafts = dict(engine.params.drafts)
    if "script" in engine.setup.names:
        nothing = np.full((rows, engine.capacity), -1, np.int32)
        drafts["script"] = jnp.asarray(nothing if script is None else script)
    selector = always(rows, 0, 0) if plan is None else plan
    return dataclasses.replace(engine.params, drafts=drafts, selector=selector), state


def run(
    engine: Engine, prompts: list[list[int]], plan: Plan | SelectorParams | None = None, script=None, **options: Any
) -> Run:
    """Generate to the end by the plan, or by what a selector is told, through the compiled loop."""
    params, state = began(engine, prompts, plan, script, **options)
    state, _ = decode.loop(engine.setup, params, state, FOREVER, np.zeros(len(prompts), bool))
    return host(state)


def plain(engine: Engine, prompts: list[list[int]], **options: Any) -> Run:
    """Generate by the plain loop, one token a step."""
    options = {name: options[name] for name in options if not name.startswith("draft_")}
    request = decode.make_request(engine.plain, prompts, **options)
    state = decode.start(engine.plain, engine.params, prompts, request, capacity=engine.capacity)
    params = dataclasses.replace(engine.params, drafts={}, selector=())
    return host(decode.plain_loop(engine.plain, params, state, FOREVER))


def host(state: State) -> Run:
    """A state's tokens and reasons, with everything copied to the host."""
    state = jax.tree.map(np.asarray, state)
    begin, end = state.request.prompt_length, state.length
    spans = [slice(int(a), int(b)) for a, b in zip(begin, end, strict=True)]
    logprobs = state.logprobs
    return Run(
        tokens=[row[span].tolist() for row, span in zip(state.tokens, spans, strict=True)],
        reasons=[FINISH_REASON[int(code)] for code in state.outcome],
        logprobs=None if logprobs is None else [row[span] for row, span in zip(logprobs, spans, strict=True)],
        state=state,
    )


def scripted(engine: Engine, prompts: list[list[int]], outputs: list[list[int]]) -> np.ndarray:
    """A script that drafts the given outputs at their positions."""
    table = np.full((len(prompts), engine.capacity), -1, np.int32)
    for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        table[row, len(prompt) : len(prompt) + len(output)] = output
    return table
