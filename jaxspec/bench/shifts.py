"""Texts that change under a selector's feet, and how many rounds it needs to find what is best now."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxspec.bench.oracle import best_fixed
from jaxspec.bench.prices import Priced, priced
from jaxspec.bench.record import PLACES, Record, pool_of
from jaxspec.bench.replay import Series

REGAINED = 0.95
"""Share of the best fixed choice's rate that counts as regained."""


def splice(records: Sequence[Record], order: Sequence[str], *, tokens: int | None = None) -> tuple[Record, list[int]]:
    """One long text of parts by category, and where each part begins.

    No draft reaches over the end of the text that it was recorded in: as many are offered there as fit before it.

    Args:
        order: categories, for example code, chat, rag; one that comes again goes on with the texts not taken yet.
        tokens: length of each part at the most; all of a category's texts where None.

    Raises:
        ValueError: no order, or a category that has no texts, or none left.
    """
    pool_of(records)
    if not order:
        raise ValueError("the order of the parts is empty; give categories, for example code chat rag")
    left = {name: [record for record in records if record.category == name] for name in order}
    parts: list[Record] = []
    starts = []
    for name in order:
        if not left[name]:
            known = ", ".join(sorted({record.category for record in records}))
            raise ValueError(f"category {name!r} has no texts that are left; the records have {known}")
        starts.append(sum(map(len, parts)))
        taken = 0
        while left[name] and (tokens is None or taken < tokens):
            part = left[name].pop(0)
            part = part if tokens is None else cut(part, 0, min(len(part), tokens - taken))
            parts.append(_closed(part))
            taken += len(part)
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in PLACES}
    whole = dataclasses.replace(parts[0], **arrays, limit=len(arrays["ids"]), category=">".join(order), name="spliced")
    return whole, starts


def cut(record: Record, start: int, stop: int) -> Record:
    """Positions start to stop - 1 as a text of their own, whose prompt is what comes before."""
    if not 0 <= start < stop <= len(record):
        raise ValueError(f"cannot cut {start} to {stop} out of a record of {len(record)} tokens")
    arrays = {name: getattr(record, name)[start:stop] for name in PLACES}
    arrays["right"] = np.minimum(arrays["right"], np.arange(stop - start, 0, -1)[:, None]).astype(np.int32)
    limit = max(record.limit - start, stop - start) if stop == len(record) else stop - start
    return dataclasses.replace(record, **arrays, prompt_length=record.prompt_length + start, limit=limit)


def _closed(record: Record) -> Record:
    """The record with no more drafts than fit before its end."""
    most = np.arange(len(record) - 1, -1, -1, dtype=np.int32)[:, None]
    offered = np.minimum(record.offered, most)
    return dataclasses.replace(record, offered=offered, right=np.minimum(record.right, offered))


def sabotage(record: Record, source: str, start: int) -> Record:
    """The record with every draft of a source wrong from position `start` on; what it says of itself stays the same."""
    index = record.pool.index(source)
    if not 0 <= start <= len(record):
        raise ValueError(f"cannot begin at position {start} of a record of {len(record)} tokens")
    right = record.right.copy()
    right[:, index] = np.minimum(right[:, index], np.maximum(start - np.arange(len(record)), 0))
    return dataclasses.replace(record, right=right)


def recovery(
    series: Series, best: Series, *, start: int = 0, stop: int | None = None, window: int = 32, share: float = REGAINED
) -> int | None:
    """Rounds after position `start` until `window` rounds in a row reach a share of the best choice's rate.

    Both are compared over the same tokens of the text: what the window's tokens cost, beside what they cost the best.

    Args:
        series, best: rounds of one text.
        start, stop: positions between which to look; to the text's end where None.

    Returns:
        The window's first round, 0 for the first one at or after `start`; None where no window reaches it.
    """
    inside = (series.position >= start) & (series.position < (np.inf if stop is None else stop))
    position, cost = series.position[inside], series.cost[inside].astype(np.float64)
    if len(cost) < window:
        return None
    ends = np.append(position, position[-1] + series.emitted[inside][-1])
    spent = np.concatenate([[0.0], np.cumsum(cost)])
    ideal = spending(best, ends)
    ratio = (ideal[window:] - ideal[:-window]) / (spent[window:] - spent[:-window])
    found = np.flatnonzero(ratio >= share - 1e-9)
    return int(found[0]) if len(found) else None


def spending(series: Series, positions: np.ndarray) -> np.ndarray:
    """What a text's first tokens have cost, between two rounds in proportion to the tokens."""
    at = np.append(series.position, series.position[-1] + series.emitted[-1])
    return np.interp(positions, at, np.concatenate([[0.0], np.cumsum(series.cost.astype(np.float64))]))


def recoveries(
    series: Series,
    record: Record,
    costs: Priced,
    starts: Sequence[int],
    *,
    windows: Sequence[int] | None = None,
    window: int = 32,
) -> list[dict[str, Any]]:
    """After each start: the choice that is the best fixed one up to the next start, and `recovery` of its rate.

    Args:
        series: a selector's rounds on the record.
        starts: positions at which the text changes, ascending.
    """
    prices = priced(costs, [record], windows)
    prices = prices._replace(lag=np.zeros_like(prices.lag))  # who has always made this choice has nothing to catch up
    found = []
    for start, stop in zip(starts, [*starts[1:], len(record)], strict=True):
        (source, lookahead), played = best_fixed([cut(record, start, stop)], prices)
        best = played.text(0)
        best = best._replace(position=best.position + start)
        rounds = recovery(series, best, start=start, stop=stop, window=window)
        found.append(
            {
                "start": int(start),
                "stop": int(stop),
                "best": f"{record.pool.names[source]}:{lookahead}",
                "best_rate": played.rate,
                "rounds": rounds,
            }
        )
    return found


__all__ = ["REGAINED", "cut", "recoveries", "recovery", "sabotage", "spending", "splice"]
