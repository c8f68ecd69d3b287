"""Costs follow the device while rounds run: what a chunk took, against what the table says that it takes.

    said = sum over the entries that were used of (times used) x (its cost)        took = what the clock said
    each of them moves by  STEP x (took - said) x its share                        the others stay

Least mean squares, normalised, on entries in units of themselves: a dear entry moves further than a cheap one.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxspec.select.cost import CostTable
from jaxspec.select.kinds import Kinds
from jaxspec.telemetry import Counters

STEP = 0.05

LEAST = 0.02
"""Of a plain step: an entry that is cheaper moves as one of that cost, so that 0 can grow."""

WILD = 3.0
"""A chunk that took this many times longer than said, or less than said by it, moves the entries as that much would."""

STALE = 1.5
"""Times that a call may take longer than stored costs say, or shorter, before a user is told."""

ENOUGH = 32
"""Rounds of a call that say something about a table."""

CHANGED = 0.05
"""Share by which an entry must have moved for the table to be stored anew."""


class Used(NamedTuple):
    """How often a chunk's rounds used each entry of a table."""

    verify: np.ndarray  # [Z]
    draft: np.ndarray  # [N, A+1]
    lag: np.ndarray  # [N]
    ride: np.ndarray  # []


def used(kinds: Kinds, before: Counters, after: Counters) -> Used:
    """Of the rounds between two looks at the counters.

    Exact for one row. Rows share a round and its drafting, so of several the one that drafted most is taken for all;
    rounds in which the branch rode are those in which its source had something to give.
    """
    rounds, proposed, taken = (
        np.max(np.asarray(getattr(after, name)) - np.asarray(getattr(before, name)), axis=0).astype(float)
        for name in ("rounds", "proposed", "catch_up")
    )
    costly = np.asarray(kinds.passes, float)
    # rounds with at least k drafts, less those with more
    draft = np.zeros((len(kinds.names), kinds.lookahead + 1))
    draft[:, 1:] = -np.diff(np.concatenate([proposed, np.zeros((len(proposed), 1))], 1), axis=1)
    ride = rounds[kinds.carrier] if kinds.carrier else 0.0
    widths = np.asarray(after.widths, float) - np.asarray(before.widths, float)
    return Used(widths, draft * costly[:, None], taken * costly, np.asarray(ride))


def said(table: CostTable, use: Used) -> float:
    """Seconds that the rounds take by the table."""
    return float(sum(np.sum(np.asarray(cost, float) * count) for cost, count in zip(table, use, strict=True)))


def refine(
    table: CostTable, kinds: Kinds, before: Counters, after: Counters, seconds: float, *, step: float = STEP
) -> CostTable:
    """The table, its entries that were used moved towards what a chunk took.

    Args:
        before, after: counters at the chunk's ends, on the host.
        seconds: that the chunk took, compilation apart.
    """
    use = used(kinds, before, after)
    expected = said(table, use)
    if use.verify.sum() <= 0 or expected <= 0:
        return table
    error = min(max(seconds, expected / WILD), expected * WILD) - expected
    costs = [np.asarray(cost, float) for cost in table]
    scales = [np.maximum(cost, LEAST * costs[0][0]) for cost in costs]
    shares = [count * scale for count, scale in zip(use, scales, strict=True)]
    whole = sum(float(np.sum(share**2)) for share in shares)
    moved = (
        np.maximum(cost + step * error * share * scale / whole, 0.0)
        for cost, share, scale in zip(costs, shares, scales, strict=True)
    )
    verify, draft, lag, ride = (jnp.asarray(np.asarray(each, np.float32)) for each in moved)
    return CostTable(verify, draft, lag, ride)


@dataclasses.dataclass
class Refiner:
    """The table of one call: refined from chunk to chunk, compared at the end with what it was."""

    table: CostTable
    kinds: Kinds
    first: CostTable = dataclasses.field(init=False)
    took: float = 0.0
    expected: float = 0.0  # by the first table
    rounds: int = 0

    def __post_init__(self) -> None:
        self.first = self.table

    def take(self, before: Counters, after: Counters, seconds: float) -> None:
        """A chunk that neither compiled nor was interrupted."""
        use = used(self.kinds, before, after)
        self.took, self.expected = self.took + seconds, self.expected + said(self.first, use)
        self.rounds += int(use.verify.sum())
        self.table = refine(self.table, self.kinds, before, after, seconds)

    @property
    def off(self) -> float | None:
        """How many times longer the rounds took than the first table says, where that is far off; None otherwise."""
        if self.rounds < ENOUGH or self.expected <= 0:
            return None
        ratio = self.took / self.expected
        return ratio if ratio > STALE or ratio < 1 / STALE else None

    @property
    def changed(self) -> bool:
        """Whether some entry has moved by more than `CHANGED`."""
        least = LEAST * float(np.asarray(self.first.verify)[0])
        pairs = (
            (np.asarray(new, float), np.asarray(old, float)) for new, old in zip(self.table, self.first, strict=True)
        )
        return any(bool(np.any(np.abs(new - old) > CHANGED * np.maximum(old, least))) for new, old in pairs)


__all__ = ["Refiner", "Used", "refine", "said", "used"]
