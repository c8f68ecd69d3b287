"""Made-up texts with known acceptance: what is best is known, so a selector's regret can be measured.

Every place of the text is right or wrong for every source, by a chance that may change along the text; a source's run
of right drafts is the run of right places. Match lengths, confidences and the target's certainty are the same at every
place: a selector has nothing to go by but what happened.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxspec.bench.oracle import Place, always, best_fixed, cost_table, gather, oracle, walk
from jaxspec.bench.prices import Priced, priced
from jaxspec.bench.record import Pool, Record
from jaxspec.bench.replay import Replayed, Series, replay
from jaxspec.bench.shifts import spending
from jaxspec.contracts import FREE, MODEL, Selector
from jaxspec.typing import PyTree

POOL = Pool(("none", "lookup", "lm"), (FREE, FREE, MODEL), (False, False, False))

Players = Mapping[str, tuple[Selector, PyTree]]
"""Selectors and their parameters, by the name to show."""


@dataclasses.dataclass(frozen=True)
class Process:
    """A text and how it came about."""

    name: str
    record: Record
    chance: np.ndarray  # [n, N] float64, that a place is right for a source; 0 for "none"


def stationary(tokens: int, chances: Sequence[float] = (0.3, 0.8), *, depth: int = 8, seed: int = 0) -> Process:
    """The same chance everywhere, one for each source of `POOL` after "none"."""
    return _process("stationary", np.broadcast_to(np.asarray(chances, np.float64), (tokens, len(chances))), depth, seed)


def drifting(
    tokens: int, *, period: int = 1000, low: float = 0.1, high: float = 0.9, depth: int = 8, seed: int = 0
) -> Process:
    """One source gets better while the other gets worse, back and forth, once in `period` tokens."""
    wave = (1 + np.cos(2 * np.pi * np.arange(tokens) / period)) / 2
    return _process("drifting", low + (high - low) * np.stack([wave, 1 - wave], 1), depth, seed)


def switching(
    tokens: int, *, block: int = 400, low: float = 0.05, high: float = 0.9, depth: int = 8, seed: int = 0
) -> Process:
    """One source is good and the other is bad; they change places every `block` tokens."""
    first = (np.arange(tokens) // block) % 2 == 0
    return _process("switching", np.where(np.stack([first, ~first], 1), high, low), depth, seed)


def adversarial(
    tokens: int, *, first: int = 50, low: float = 0.02, high: float = 0.95, depth: int = 8, seed: int = 0
) -> Process:
    """They change places after 50, 100, 200, .. tokens: all that was seen of a source speaks for it when it fails."""
    turns = np.floor(np.log2(np.arange(tokens) / first + 1)).astype(np.int64)
    good = turns % 2 == 0
    return _process("adversarial", np.where(np.stack([good, ~good], 1), high, low), depth, seed)


def useless(tokens: int, *, depth: int = 8, seed: int = 0) -> Process:
    """No draft is ever right: plain decoding is best."""
    return _process("useless", np.zeros((tokens, 2)), depth, seed)


KINDS = (stationary, drifting, switching, adversarial, useless)


def _process(name: str, chances: np.ndarray, depth: int, seed: int) -> Process:
    """Draw the places."""
    tokens, sources = chances.shape
    if not np.all((chances >= 0) & (chances <= 1)):
        raise ValueError(f"process {name!r} has chances from {chances.min()} to {chances.max()}; give 0 to 1")
    chance = np.concatenate([np.zeros((tokens, 1)), chances], axis=1)
    right = np.random.default_rng(seed).random(chance.shape) < chance
    run = np.zeros((tokens + 1, sources + 1), np.int32)
    for at in range(tokens - 1, -1, -1):
        run[at] = np.where(right[at], run[at + 1] + 1, 0)
    offered = np.full((tokens, sources + 1), depth, np.int32)
    offered[:, 0] = 0
    seen = (np.arange(tokens) > 0).astype(np.float32)
    free = np.asarray([cost == FREE for cost in POOL.costs])
    confidence = np.where(free, 1.0, 0.7).astype(np.float32)
    record = Record(
        pool=POOL,
        offered=offered,
        right=np.minimum(run[:-1], offered),
        match=np.broadcast_to(np.where(free, 3, 0), offered.shape).astype(np.int32) * (offered > 0),
        confidence=np.broadcast_to(confidence[None, :, None], (*offered.shape, depth)).copy(),
        top=0.7 * seen,
        margin=0.4 * seen,
        entropy=seen,
        domain=np.full(tokens, -1, np.int32),
        ids=np.arange(tokens, dtype=np.int32),
        prompt_length=1,
        limit=tokens,
        category=name,
        name=f"{name}-{seed}",
    )
    return Process(name, record, chance)


def informed(process: Process, costs: Priced, *, windows: Sequence[int] | None = None) -> Replayed:
    """The choice that is best by the true chances at every place: who knows the process, but not what it will draw."""
    prices = priced(costs, [process.record], windows)
    cost = cost_table(process.record.pool, prices)
    depth = np.arange(cost.shape[1])

    def pick(place: Place) -> tuple[int, int]:
        chance = process.chance[place.at][:, None]
        gain = np.cumsum(chance**depth, axis=1) / cost
        source, lookahead = divmod(int(np.argmax(np.where(depth <= place.offered[:, None], gain, 0))), len(depth))
        return source, lookahead

    return gather([process.record], [walk(process.record, prices, pick)])


def regret(series: Series, best: Series, positions: np.ndarray) -> np.ndarray:
    """How much more a text's first tokens have cost than they have cost the best, in the costs' unit."""
    return spending(series, positions) - spending(best, positions)


def regrets(
    process: Process, players: Players, costs: Priced, *, windows: Sequence[int] | None = None, points: int = 100
) -> dict[str, Any]:
    """Every player's rate and regret on a process, JSON values: against the best fixed choice, and the oracle.

    "informed" is one more player (`informed`): what its regret against the best fixed choice falls below 0, a selector
    can win by following the changes.
    """
    records = [process.record]
    (source, lookahead), fixed = best_fixed(records, costs, windows=windows)
    clairvoyant = oracle(records, costs, windows=windows)
    played = {
        name: replay(selector, params, records, costs, windows=windows) for name, (selector, params) in players.items()
    }
    played["informed"] = informed(process, costs, windows=windows)
    positions = np.unique(np.linspace(0, len(process.record), points + 1).round().astype(np.int64))
    return {
        "process": process.name,
        "tokens": len(process.record),
        "best_fixed": {"choice": f"{POOL.names[source]}:{lookahead}", "rate": fixed.rate},
        "oracle_rate": clairvoyant.rate,
        "plain_rate": always(records, costs, 0, 0, windows=windows).rate,
        "positions": positions.tolist(),
        "players": {
            name: {
                "rate": each.rate,
                "rounds": each.by_source(),
                "regret_to_best_fixed": regret(each.text(0), fixed.text(0), positions).round(4).tolist(),
                "regret_to_oracle": regret(each.text(0), clairvoyant.text(0), positions).round(4).tolist(),
            }
            for name, each in played.items()
        },
    }


__all__ = [
    "KINDS",
    "POOL",
    "Players",
    "Process",
    "adversarial",
    "drifting",
    "informed",
    "regret",
    "regrets",
    "stationary",
    "switching",
    "useless",
]
