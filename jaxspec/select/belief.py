"""What a selector believes of each source: discounted acceptance by context and depth, per row and shared by all.

A cell is (source, context bin, depth); it holds how often the target took the draft there and how often that was known,
older rounds counting less. A row that has seen little of a cell leans on what all rows have seen, and that on a prior.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxspec.contracts import Feedback, Signals
from jaxspec.typing import RowMask

BINS = 8
"""Context bins of a source."""

LEVELS = 10
"""Bins of a draft's own confidence, each a tenth wide."""


class Counts(NamedTuple):
    """Discounted sums, float32."""

    taken: Float[Array, "..."]
    known: Float[Array, "..."]


class Belief(NamedTuple):
    """What was seen, by row. C context bins, A depths, Q levels of confidence."""

    depth: Counts  # [B, N, C, A]
    sure: Counts  # [B, N, Q]


class Prior(NamedTuple):
    """What is believed before the first round, from earlier calls: counts, which weigh as much as they have seen."""

    depth: Counts  # [N, C, A]
    sure: Counts  # [N, Q]


def no_belief(rows: int, sources: int, depths: int) -> Belief:
    """Nothing seen."""
    return Belief(_zeros(rows, sources, BINS, depths), _zeros(rows, sources, LEVELS))


def no_prior(sources: int, depths: int) -> Prior:
    """Nothing known: `expected` falls back on `naive`."""
    return Prior(_zeros(sources, BINS, depths), _zeros(sources, LEVELS))


def _zeros(*shape: int) -> Counts:
    return Counts(jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32))


def context(signals: Signals, by_match: tuple[bool, ...], by_law: tuple[bool, ...]) -> Int[Array, "B N"]:
    """Context bin of each source: its match length, its first draft's confidence, or how sure the target was last.

    Args:
        by_match: sources whose match length says most (lookup, suffix, jacobi). Static.
        by_law: free sources whose first draft has a probability (n-gram table). Static. Others go by the target.
    """
    assert signals.seen is not None
    match = jnp.minimum(signals.match, BINS - 1)
    law = level(jnp.ones_like(match, jnp.float32) if signals.confidence is None else signals.confidence, BINS)
    sure = jnp.broadcast_to(level(signals.seen.top, BINS)[:, None], match.shape)
    return jnp.where(jnp.asarray(by_match), match, jnp.where(jnp.asarray(by_law), law, sure)).astype(jnp.int32)


def level(value: Float[Array, "..."], levels: int) -> Int[Array, "..."]:
    """Bin of a probability, int32.   10 levels: 0.05 -> 0, 0.95 -> 9, 1.0 -> 9"""
    return jnp.clip(jnp.floor(value * levels), 0, levels - 1).astype(jnp.int32)


def naive(bins: Int[Array, "B N"], by_match: tuple[bool, ...]) -> Float[Array, "B N 1"]:
    """What to expect of a cell that nobody has seen: a longer match, or a surer law, is taken more often."""
    matched = jnp.minimum(0.3 + 0.1 * bins, 0.8)
    others = 0.2 + 0.6 * (bins + 0.5) / BINS
    return jnp.where(jnp.asarray(by_match), matched, others)[..., None].astype(jnp.float32)


WEIGHT = 4.0
"""Observations that the next wider circle counts for: all rows beside a row, the naive guess beside all rows."""


def expected(
    belief: Belief, prior: Prior, bins: Int[Array, "B N"], by_match: tuple[bool, ...]
) -> tuple[Float[Array, "B N A"], Float[Array, "B N A"]]:
    """Chance that the target takes each depth's draft, given those before it; and how much all rows saw of it."""
    mine = Counts(*(_at(leaf, bins) for leaf in belief.depth))
    all_rows = Counts(
        *(_shared(leaf, bins) + _of_prior(given, bins) for leaf, given in zip(belief.depth, prior.depth, strict=True))
    )
    wide = (all_rows.taken + WEIGHT * naive(bins, by_match)) / (all_rows.known + WEIGHT)
    chance = (mine.taken + WEIGHT * wide) / (mine.known + WEIGHT)
    return chance, all_rows.known


def trusted(belief: Belief, prior: Prior) -> Float[Array, "B N Q"]:
    """Chance that the target takes a draft whose source had this confidence in it; the confidence itself if unseen."""
    centre = (jnp.arange(LEVELS, dtype=jnp.float32) + 0.5) / LEVELS
    taken = prior.sure.taken[None] + belief.sure.taken.sum(0, keepdims=True)
    known = prior.sure.known[None] + belief.sure.known.sum(0, keepdims=True)
    wide = (taken + WEIGHT * centre) / (known + WEIGHT)
    return (belief.sure.taken + WEIGHT * wide) / (belief.sure.known + WEIGHT)


def learn(belief: Belief, bins: Int[Array, "B N"], feedback: Feedback, active: RowMask, *, forget: float) -> Belief:
    """One round more. Cells that the round says something of forget what is older; the others stay."""
    known = feedback.known & active[:, None, None]
    here = (jnp.arange(BINS)[None, None, :] == bins[..., None])[..., None]  # [B, N, C, 1]
    depth = _add(belief.depth, here & known[:, :, None, :], feedback.chance[:, :, None, :], forget)
    at = level(feedback.confidence, LEVELS)
    of = (jnp.arange(LEVELS)[None, None, :, None] == at[:, :, None, :]) & known[:, :, None, :]  # [B, N, Q, A]
    seen = of.astype(jnp.float32).sum(-1)
    sure = Counts(
        _decay(belief.sure.taken, seen, forget) + (of * feedback.chance[:, :, None, :]).sum(-1),
        _decay(belief.sure.known, seen, forget) + seen,
    )
    return Belief(depth, sure)


def _add(counts: Counts, which: Bool[Array, "B N C A"], chance: Float[Array, "B N 1 A"], forget: float) -> Counts:
    one = which.astype(jnp.float32)
    return Counts(_decay(counts.taken, one, forget) + one * chance, _decay(counts.known, one, forget) + one)


def _decay(leaf: Float[Array, "..."], seen: Float[Array, "..."], forget: float) -> Float[Array, "..."]:
    return leaf * forget**seen


def _at(leaf: Float[Array, "B N C A"], bins: Int[Array, "B N"]) -> Float[Array, "B N A"]:
    return jnp.take_along_axis(leaf, bins[..., None, None], axis=2)[:, :, 0]


def _shared(leaf: Float[Array, "B N C A"], bins: Int[Array, "B N"]) -> Float[Array, "B N A"]:
    """What the other rows saw in the cells of each row."""
    everyone = jnp.broadcast_to(leaf.sum(0, keepdims=True), leaf.shape)
    return _at(everyone, bins) - _at(leaf, bins)


def _of_prior(leaf: Float[Array, "N C A"], bins: Int[Array, "B N"]) -> Float[Array, "B N A"]:
    return _at(jnp.broadcast_to(leaf[None], (len(bins), *leaf.shape)), bins)


__all__ = [
    "BINS",
    "LEVELS",
    "Belief",
    "Counts",
    "Prior",
    "context",
    "expected",
    "learn",
    "level",
    "naive",
    "no_belief",
    "no_prior",
    "trusted",
]
