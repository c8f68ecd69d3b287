"""What a run did, by round and token, on the host: the record behind the page of `generate.py --trace`."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

ACCEPTED, CORRECTED, BONUS, PLAIN = "accepted", "corrected", "bonus", "plain"

MEANING = {
    ACCEPTED: "a draft that the target agreed with",
    CORRECTED: "the target's own token, where it rejected the draft",
    BONUS: "the target's own token, after it accepted every draft",
    PLAIN: "the target's own token, in a round without drafts",
}
"""The marks a token may have, and what each says."""


@dataclasses.dataclass(frozen=True)
class Mark:
    """One token of the output."""

    id: int
    text: str  # what it added to the text; "" within a character, for a special token, and from a stop string on
    mark: str  # one of MEANING
    source: str  # whose draft it was or would have been, after all drafts whose the last one was; else whose round
    probability: float | None  # in the model's own softmax
    name: str = ""  # of a special token


@dataclasses.dataclass(frozen=True)
class Round:
    """One round of one row."""

    number: int  # of the batch's rounds, from 1
    source: str
    lookahead: int | None  # drafts that were asked for; None where that was not told
    proposed: int  # drafts
    accepted: int  # drafts
    seconds: float  # of the whole batch's round
    marks: tuple[Mark, ...]  # tokens it gave
    signals: dict[str, float] = dataclasses.field(default_factory=dict)  # what the selector saw, by name or name@source
    estimates: dict[str, float] = dataclasses.field(default_factory=dict)  # what it expected, likewise
    tail: str = ""  # the source that went on where the drafts of `source` ended


@dataclasses.dataclass(frozen=True)
class Trace:
    """What a call did."""

    title: str
    settings: dict[str, str]
    sources: tuple[str, ...]  # "none" first
    rows: list[list[Round]]
    prompts: tuple[str, ...] = ()  # what each row was asked
    finish_reasons: tuple[str, ...] = ()


def as_dict(trace: Trace) -> dict[str, Any]:
    """The trace as JSON takes it: fields by name, numbers that are not finite as None."""
    return _plain(dataclasses.asdict(trace))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Recorder:
    """Every round of every row, from looks at the state with one round between two of them."""

    def __init__(self, sources: Sequence[str], rows: int):
        self.sources = tuple(sources)
        self.rows: list[list[Round]] = [[] for _ in range(rows)]

    def record(self, before: Any, seen: Any, seconds: float) -> None:
        """Take one round.

        Args:
            before, seen: what `decode.stream` gave (a `decode.Progress`) before and after it, on the host. Where it
                has `told`, names with arrays [B] or [B, N]: "lookahead" are the drafts that the selector asked for,
                names that begin with "signal " what it saw, others what it expected.
            seconds: the round took.
        """
        ran = np.asarray(seen.counters.rounds) - np.asarray(before.counters.rounds)
        assert ran.sum(1).max() <= 1, "more than one round lies between two looks"
        told = getattr(seen, "told", None) or {}
        proposed, accepted = (
            (np.asarray(getattr(seen.counters, name)) - np.asarray(getattr(before.counters, name))).sum(-1)
            for name in ("proposed", "accepted")
        )
        for row in map(int, np.flatnonzero(ran.sum(1))):
            head = int(ran[row].argmax())
            tails = [index for index in np.flatnonzero(proposed[row]) if index != head]
            drafts = [(self.sources[i], int(proposed[row, i]), int(accepted[row, i])) for i in (head, *tails)]
            fresh = slice(int(before.length[row]), int(seen.length[row]))
            logprobs = None if seen.logprobs is None else seen.logprobs[row][fresh]
            asked, signals, estimates = _heard(told, row, self.sources)
            this = Round(
                int(seen.rounds),
                self.sources[head],
                asked,
                int(proposed[row].sum()),
                int(accepted[row].sum()),
                seconds,
                _marks(seen.tokens[row][fresh], logprobs, drafts),
                signals,
                estimates,
                ", ".join(self.sources[index] for index in tails),
            )
            self.rows[row].append(this)

    def written(self, pieces: Sequence[Sequence[tuple[str, str]]]) -> list[list[Round]]:
        """The rounds with (text, name) of every token of every row.

        Tokens beyond them are left out, and rounds that then have none: those ran on behind a stop string.
        """
        return [_written(rounds, each) for rounds, each in zip(self.rows, pieces, strict=True)]


def _marks(tokens: np.ndarray, logprobs: np.ndarray | None, drafts: Sequence[tuple[str, int, int]]) -> tuple[Mark, ...]:
    """Accepted drafts first, then the target's own token, unless the row ended before it.

    tokens 5 8 2 9 of (source, proposed, accepted) (a, 2, 2), (b, 2, 1)   ->   accepted a a b, corrected b
    """
    whose = [source for source, _, accepted in drafts for _ in range(accepted)]
    missed = [source for source, proposed, accepted in drafts if accepted < proposed]
    given = [source for source, proposed, _ in drafts if proposed]
    if missed:
        own, by = CORRECTED, missed[0]
    elif given:
        own, by = BONUS, given[-1]
    else:
        own, by = PLAIN, drafts[0][0]
    marks = []
    for index, token in enumerate(tokens):
        probability = None if logprobs is None else float(f"{math.exp(min(0.0, float(logprobs[index]))):.6g}")
        mark, source = (ACCEPTED, whose[index]) if index < len(whose) else (own, by)
        marks.append(Mark(int(token), "", mark, source, probability))
    return tuple(marks)


def _heard(
    told: Mapping[str, Any], row: int, sources: Sequence[str]
) -> tuple[int | None, dict[str, float], dict[str, float]]:
    """Lookahead, signals and estimates of one row; by source as name@source."""
    lookahead: int | None = None
    signals: dict[str, float] = {}
    estimates: dict[str, float] = {}
    for key, values in told.items():
        mine = np.asarray(values[row])
        if key == "lookahead":
            lookahead = int(mine)
            continue
        name = key.removeprefix("signal ")
        into = estimates if name == key else signals
        names = [name] if mine.ndim == 0 else [f"{name}@{source}" for source in sources]
        for each, value in zip(names, mine.reshape(-1), strict=True):
            if np.isfinite(value):
                into[each] = float(f"{float(value):.6g}")
    return lookahead, signals, estimates


def _written(rounds: Sequence[Round], pieces: Sequence[tuple[str, str]]) -> list[Round]:
    out, begin = [], 0
    for each in rounds:
        mine = pieces[begin : begin + len(each.marks)]
        begin += len(each.marks)
        marks = [
            dataclasses.replace(mark, text=text, name=name)
            for mark, (text, name) in zip(each.marks, mine, strict=False)
        ]
        if marks:
            out.append(dataclasses.replace(each, marks=tuple(marks)))
    return out
