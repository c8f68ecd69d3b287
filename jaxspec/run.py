"""One call of the pipeline: rows are read while the device runs on, text is shown as it becomes certain."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import DTypeLike

from jaxspec import decode, telemetry
from jaxspec.contracts import EngineParams, Request, Setup
from jaxspec.outcome import FINISH_REASON, HALTED, RUNNING, STOP
from jaxspec.text import StopStream, Tokenizer

OnText = Callable[[int, str], None]
OnEnd = Callable[[int], None]
OnStage = Callable[[str], None]

PREPARING, DECODING, ENDING = "preparing", "decoding", "ending"
"""Stages of a call: prefill and compilation, then rounds, then what was held back is shown, interrupted or not."""


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
        self.stream = StopStream(tokenizer, stop)
        self.tokens: list[int] = []
        self.text, self.closed = "", False
        self.begin, self.index, self.on_text, self.on_end = begin, index, on_text, on_end

    def read(self, tokens: np.ndarray, length: int) -> None:
        """Take the tokens up to `length` that were not read yet."""
        fresh = [int(t) for t in tokens[self.begin + len(self.tokens) : length]]
        if self.stream.matched is None and not self.closed and fresh:
            self._show(self.stream.push(fresh))
            self.tokens += fresh

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
    ):
        self.setup, self.params, self.request, self.prompts, self.rows = setup, params, request, prompts, rows
        self.dtype, self.on_stage = dtype, on_stage
        self.chunks: list[telemetry.Chunk] = []

    def finish(self) -> Answer:
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
        last = self._read(jax.device_get(last))
        try:
            clock = ready
            for seen in decode.stream(self.setup, params, state, halt=self._halt):
                last = self._read(jax.device_get(seen), last, time.perf_counter() - clock)
                clock = time.perf_counter()
        except KeyboardInterrupt:
            pass  # rows that still run end as they are
        seconds = time.perf_counter() - ready
        self.on_stage(ENDING)
        report = telemetry.stats(
            last.counters,
            self.setup.names,
            rounds=int(last.rounds),
            seconds=seconds,
            windows=self.setup.windows,
            chunks=self.chunks,
        )
        report["prefill_seconds"], report["compile_seconds"] = prefilled - began, ready - prefilled
        report["compilations_after_warmup"] = telemetry.compilations() - compiled
        results = [self._result(row, last) for row in self.rows]
        report["tokens"] = sum(len(result.tokens) for result in results)  # what follows a stop string does not count
        report["tokens_per_second"] = report["tokens"] / seconds
        return Answer(results, report)

    def _read(
        self, seen: decode.Progress, before: decode.Progress | None = None, seconds: float = 0.0
    ) -> decode.Progress:
        for row in self.rows:
            row.read(np.asarray(seen.tokens[row.index]), int(seen.length[row.index]))
            if seen.outcome[row.index] != RUNNING or row.stream.matched is not None:
                row.close()
        if before is not None:
            rounds = (seen.counters.rounds - before.counters.rounds).sum(0)
            self.chunks.append(telemetry.Chunk(seconds, tuple(float(n) for n in rounds)))
        return seen

    def _halt(self) -> np.ndarray:
        return np.asarray([row.stream.matched is not None for row in self.rows])

    def _result(self, row: Row, last: decode.Progress) -> Result:
        row.close()
        code = int(last.outcome[row.index])
        if row.stream.matched is not None:
            code = STOP
        elif code == RUNNING:
            code = HALTED
        logprobs = None
        if last.logprobs is not None:
            logprobs = [float(x) for x in last.logprobs[row.index][row.begin : row.begin + len(row.tokens)]]
        return Result(row.begin, row.tokens, row.text, FINISH_REASON[code], logprobs)
