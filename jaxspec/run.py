"""One call of the pipeline: rows are read while the device runs on, text is shown as it becomes certain."""

import dataclasses
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.typing import DTypeLike

from jaxspec import decode, telemetry
from jaxspec.contracts import EngineParams, Request, Setup
from jaxspec.costs import Refiner, price_of
from jaxspec.decode.generate import CHUNK
from jaxspec.outcome import FINISH_REASON, HALTED, RUNNING, STOP
from jaxspec.sampling import warpers
from jaxspec.select.cost import CostTable
from jaxspec.text import StopStream, Stream, Tokenizer

OnText = Callable[[int, str], None]
OnEnd = Callable[[int], None]
OnStage = Callable[[str], None]

CALIBRATING, PREPARING, DECODING, ENDING = "calibrating", "preparing", "decoding", "ending"
"""Stages of a call: costs are measured, where none are known; prefill and compilation; rounds; what was held back is
shown, interrupted or not."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What one row produced."""

    prompt_tokens: int
    tokens: list[int]  # end ids included
    text: str  # end ids and stop strings left out
    finish_reason: str  # "stop" | "length" | "interrupted"
    logprobs: list[float] | None  # of `tokens`, under the model's own softmax


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a call produced: a result for every prompt (num_samples each, side by side) and what each source did."""

    results: list[Result]
    stats: dict[str, Any]
    by_domain: telemetry.ByDomain | None = None  # the same by kind of text
    trace: telemetry.Trace | None = None  # where it was asked for


def begin_trace(
    setup: Setup,
    request: Request,
    prompts: Sequence[str | Sequence[Mapping[str, object]]],
    settings: Mapping[str, Any],
    *,
    target: str,
    select: str,
) -> telemetry.Trace:
    """A trace without rounds, for `Run` to fill; the target's path shows its last part alone, since pages are shared.

    Args:
        prompts: strings or messages, one a row.
        settings: options of `warpers`; those that are as usual are left out.
        target, select: as in `jaxspec.load`.
    """
    name, usual = Path(target).name, inspect.signature(warpers).parameters
    device = (jax.devices() if setup.mesh is None else setup.mesh.devices.flat)[0]
    given = {
        "target": name,
        "drafts": ", ".join(setup.names[1:]) or "none",
        "select": select,
        "lookahead": setup.lookahead,
        "verify": setup.verify,
        "device": device.device_kind,
        "max new tokens": int((request.limit - request.prompt_length)[0]),
        **({} if setup.verify == "greedy" else {"first seed": int(request.seed[0])}),
        **{key: value for key, value in settings.items() if not np.array_equal(value, usual[key].default)},
    }
    words = tuple(p if isinstance(p, str) else str(p[-1].get("content", "")) for p in prompts)
    told = {key.replace("_", " "): f"{value}" for key, value in given.items()}
    return telemetry.Trace(f"{name}, token by token", told, setup.names, [], words)


def domains_of(domain: str | Sequence[str | None] | None, prompts: int) -> list[str | None]:
    """What the caller calls each prompt's kind of text.

    Raises:
        ValueError: not as many as there are prompts, or an empty name.
    """
    names = [domain] * prompts if domain is None or isinstance(domain, str) else list(domain)
    if len(names) != prompts:
        raise ValueError(f"domain has {len(names)} entries for {prompts} prompts; give one for all, or one a prompt")
    if any(name == "" for name in names):
        raise ValueError(f"domain is {domain!r}; a kind of text is a name that is not empty, or None")
    return names


class Row:
    """One row's text on the host: what was read of it, what was shown, where a stop string ends it."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str],
        begin: int,
        index: int,
        on_text: OnText | None,
        on_end: OnEnd | None,
    ):
        self.tokenizer, self.stream = tokenizer, StopStream(tokenizer, stop)
        self.tokens: list[int] = []
        self.text, self.closed = "", False
        self.begin, self.index, self.on_text, self.on_end = begin, index, on_text, on_end

    def read(self, tokens: np.ndarray, length: int) -> None:
        """Take the tokens up to `length` that were not read yet."""
        fresh = [int(t) for t in tokens[self.begin + len(self.tokens) : length]]
        if self.stream.matched is None and not self.closed and fresh:
            self.tokens += fresh
            self._show(self.stream.push(fresh))

    def close(self) -> None:
        """Show what was held back, and cut the tokens where a stop string was completed; once."""
        if self.closed:
            return
        self.closed = True
        self._show(self.stream.finish())
        if self.stream.tokens is not None:
            self.tokens = self.tokens[: self.stream.tokens]
        if self.on_end is not None:
            self.on_end(self.index)

    def pieces(self) -> list[tuple[str, str]]:
        """The text that each token added, and the name of a special token; together they are the row's text."""
        tokenizer, stream, room = self.tokenizer, Stream(self.tokenizer), len(self.text)
        out = []
        for index, token in enumerate(self.tokens):
            text = stream.push([token]) + (stream.finish() if index == len(self.tokens) - 1 else "")
            text = text[:room]  # a stop string is left out
            room -= len(text)
            out.append((text, tokenizer.decode([token], skip_special=False) if token in tokenizer.special_ids else ""))
        return out

    def _show(self, text: str) -> None:
        self.text += text
        if text and self.on_text is not None:
            self.on_text(self.index, text)


class Run:
    """One call of `generate`: prefill, the chunks, the report."""

    def __init__(
        self,
        setup: Setup,
        params: EngineParams,
        request: Request,
        prompts: list[list[int]],
        rows: list[Row],
        *,
        dtype: DTypeLike,
        on_stage: OnStage = lambda stage: None,
        trace: telemetry.Trace | None = None,
        refiner: Refiner | None = None,
        costs: CostTable | None = None,
        domains: Sequence[str | None] = (),
    ):
        """Rows to be generated.

        Args:
            trace: from `begin_trace`, where one is asked for; then the host looks after every round.
            refiner: of the selector's costs, where they are to follow the device; not while tracing, which takes time.
            costs: of the rounds, to share seconds out by; None where no table is at hand.
            domains: what the caller calls each row's kind of text; where None or none is given, the cluster it is in.
        """
        self.setup, self.params, self.request, self.prompts, self.rows = setup, params, request, prompts, rows
        self.dtype, self.on_stage, self.trace = dtype, on_stage, trace
        self.recorder = None if trace is None else telemetry.Recorder(setup.names, len(rows))
        self.refiner = refiner if trace is None else None
        self.costs, self.domains = costs, tuple(domains) or (None,) * len(rows)
        self.tally = telemetry.Tally(setup.names)
        self.learnt: Any = None  # what the selector has to begin the next call with; None: nothing
        self._compiled = 0  # programs, when the last chunk was read

    def finish(self, *, logprobs: bool) -> Answer:
        """Generate; `logprobs` says whether the results have those that the setup keeps."""
        params = self.params
        self.on_stage(PREPARING)
        began = time.perf_counter()
        state = decode.start(self.setup, params, self.prompts, self.request, dtype=self.dtype)
        jax.block_until_ready(state)
        prefilled = time.perf_counter()
        state, last = decode.loop(
            self.setup, params, state, 0, np.zeros(len(self.rows), bool)
        )  # compiles, runs no round
        jax.block_until_ready(state)
        self.on_stage(DECODING)
        ready, compiled = time.perf_counter(), telemetry.compilations()
        last = self._decode(state, jax.device_get(last))
        seconds = time.perf_counter() - ready
        self.learnt = last.learnt
        self.on_stage(ENDING)
        by_domain = self._by_domain()
        report = telemetry.stats(
            last.counters,
            self.setup.names,
            rounds=int(last.rounds),
            seconds=seconds,
            windows=self.setup.windows,
            shares=by_domain.shares(),
        )
        report["prefill_seconds"], report["compile_seconds"] = prefilled - began, ready - prefilled
        report["compilations_after_warmup"] = telemetry.compilations() - compiled
        results = [self._result(row, last, logprobs=logprobs) for row in self.rows]
        report["tokens"] = sum(len(result.tokens) for result in results)  # what follows a stop string does not count
        report["tokens_per_second"] = report["tokens"] / seconds
        return Answer(results, report, by_domain, self._traced(results))

    def _decode(self, state: decode.State, last: decode.Progress) -> decode.Progress:
        """The rounds, chunk by chunk; what was seen at last, also where Ctrl-C ends them."""
        rounds = CHUNK if self.recorder is None else 1
        clock, self._compiled = time.perf_counter(), telemetry.compilations()
        try:
            self._read(last)
            for ahead in decode.stream(self.setup, self._given, state, chunk=rounds, halt=self._halt):
                seen, before = jax.device_get(ahead), last
                now = time.perf_counter()
                self._count(before, seen, now - clock)
                last, clock = seen, now
                self._read(seen)
        except KeyboardInterrupt:
            pass  # rows that still run end as they are
        return last

    def _read(self, seen: decode.Progress) -> None:
        for row in self.rows:
            row.read(np.asarray(seen.tokens[row.index]), int(seen.length[row.index]))
            if seen.outcome[row.index] != RUNNING or row.stream.matched is not None:
                row.close()

    def _count(self, before: decode.Progress, seen: decode.Progress, seconds: float) -> None:
        self.tally.take(telemetry.since(before.counters, seen.counters), seconds, self._kinds(seen))
        if self.recorder is not None:
            self.recorder.record(before, seen, seconds)
        compiled, self._compiled = self._compiled, telemetry.compilations()
        if self.refiner is not None and compiled == self._compiled:
            self.refiner.take(before.counters, seen.counters, seconds)

    def _kinds(self, seen: decode.Progress) -> list[str]:
        """Each row's kind of text: as the caller says, else by its cluster where the look ended."""
        nearest = [-1] * len(self.rows) if seen.domain is None else np.asarray(seen.domain).tolist()
        by_cluster = [telemetry.ALL if cluster < 0 else f"cluster {cluster}" for cluster in nearest]
        return [given or found for given, found in zip(self.domains, by_cluster, strict=True)]

    def _by_domain(self) -> telemetry.ByDomain:
        table = self.costs if self.refiner is None else self.refiner.table
        return self.tally.by_domain(price=None if table is None else price_of(table, self.setup))

    def _given(self) -> EngineParams:
        """The parameters of the next chunk, with the costs as they are known by now."""
        if self.refiner is None:
            return self.params
        return dataclasses.replace(self.params, selector=self.params.selector._replace(cost=self.refiner.table))

    def _halt(self) -> np.ndarray:
        return np.asarray([row.stream.matched is not None for row in self.rows])

    def _result(self, row: Row, last: decode.Progress, *, logprobs: bool) -> Result:
        row.read(np.asarray(last.tokens[row.index]), int(last.length[row.index]))  # Ctrl-C may have come before it
        row.close()
        code = int(last.outcome[row.index])
        if row.stream.matched is not None:
            code = STOP
        elif code == RUNNING:
            code = HALTED
        kept = None
        if logprobs and last.logprobs is not None:
            kept = [float(x) for x in last.logprobs[row.index][row.begin : row.begin + len(row.tokens)]]
        return Result(row.begin, row.tokens, row.text, FINISH_REASON[code], kept)

    def _traced(self, results: list[Result]) -> telemetry.Trace | None:
        if self.trace is None or self.recorder is None:
            return None
        return dataclasses.replace(
            self.trace,
            settings={**self.trace.settings, "dtype": jax.numpy.dtype(self.dtype).name},
            rows=self.recorder.written([row.pieces() for row in self.rows]),
            finish_reasons=tuple(result.finish_reason for result in results),
        )
