"""What could be had from a record: the clairvoyant choice, the best way in hindsight, the best fixed choice.

All know the record's `right`, which no selector does. Numpy on the host.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from jaxspec.bench.prices import Priced, Prices, priced
from jaxspec.bench.record import Pool, Record, pool_of
from jaxspec.bench.replay import Replayed, Series
from jaxspec.contracts import FREE


class Place(NamedTuple):
    """A record where a round begins."""

    at: int
    offered: np.ndarray  # [N], capped by what is left
    right: np.ndarray  # [N]
    lag: np.ndarray  # [N] tokens


Pick = Callable[[Place], tuple[int, int]]
"""Source and lookahead of a round."""


def oracle(records: Sequence[Record], costs: Priced, *, windows: Sequence[int] | None = None) -> Replayed:
    """In every round the choice of the most tokens a unit of cost, which is known beforehand.

    It looks at one round alone: one that ends where the next goes well can be better still (`optimum`). Of equal
    choices it takes a free source before a model, and more drafts before fewer.
    """
    pool, prices = pool_of(records), priced(costs, records, windows)
    cost, depth = cost_table(pool, prices), np.arange(records[0].depth + 1)
    rank = np.asarray([kind == FREE for kind in pool.costs])[:, None] * len(depth) + depth[None, :]

    def pick(place: Place) -> tuple[int, int]:
        behind = (prices.lag * place.lag)[:, None] * (depth > 0)
        gain = (np.minimum(place.right[:, None], depth) + 1) / (cost + behind)
        gain = np.where(depth <= place.offered[:, None], gain, 0)
        best = int(np.argmax(np.where(gain >= gain.max() * (1 - 1e-6), rank, -1)))
        return best // len(depth), best % len(depth)

    return gather(records, [walk(record, prices, pick) for record in records])


def optimum(records: Sequence[Record], costs: Priced, *, windows: Sequence[int] | None = None) -> Replayed:
    """The cheapest way through every text, which no selector can beat: to catch up costs nothing here.

    All ways emit the same text, so the most tokens a unit of cost are the least cost: a shortest path, from the end.

        least[i] = min over n, k of  cost[n, k] + least[i + min(right[i, n], k) + 1]       least[length] = 0
    """
    pool, prices = pool_of(records), priced(costs, records, windows)
    prices = prices._replace(lag=np.zeros_like(prices.lag))
    cost, depth = cost_table(pool, prices), np.arange(records[0].depth + 1)

    def cheapest(record: Record) -> Series:
        least, choice = np.zeros(len(record) + 1), np.zeros((len(record), 2), np.int64)
        for at in range(len(record) - 1, -1, -1):
            after = np.minimum(at + np.minimum(record.right[at][:, None], depth) + 1, len(record))
            whole = np.where(depth <= capped(record, at)[:, None], cost + least[after], np.inf)
            best = int(np.argmin(whole))
            least[at], choice[at] = whole.flat[best], divmod(best, len(depth))
        return walk(record, prices, lambda place: (int(choice[place.at, 0]), int(choice[place.at, 1])))

    return gather(records, [cheapest(record) for record in records])


def best_fixed(
    records: Sequence[Record], costs: Priced, *, windows: Sequence[int] | None = None
) -> tuple[tuple[int, int], Replayed]:
    """The (source, lookahead) that, asked for in every round of all the texts, gives the most tokens a unit of cost."""
    pool = pool_of(records)
    choices = [(0, 0), *((n, k) for n in range(1, len(pool.names)) for k in range(1, records[0].depth + 1))]
    played = {choice: always(records, costs, *choice, windows=windows) for choice in choices}
    best = max(choices, key=lambda choice: played[choice].rate)
    return best, played[best]


def always(
    records: Sequence[Record], costs: Priced, source: int, lookahead: int, *, windows: Sequence[int] | None = None
) -> Replayed:
    """One choice in every round, as `jaxspec.select.fixed` makes it."""
    prices = priced(costs, records, windows)
    return gather(records, [walk(record, prices, lambda place: (source, lookahead)) for record in records])


def walk(record: Record, prices: Prices, pick: Pick) -> Series:
    """The rounds of a text under a way of choosing; what `jaxspec.bench.replay.play` does, said once more in numpy."""
    cost = cost_table(record.pool, prices)
    lags, count = np.asarray(record.pool.lags), len(record)
    missed = np.full(len(lags), record.prompt_length - 1)
    at, rounds = 0, []
    while at < count:
        place = Place(at, capped(record, at), record.right[at], np.where(lags, missed, 0))
        source, asked = pick(place)
        lookahead = min(asked, int(place.offered[source]))
        source = source if lookahead > 0 else 0
        accepted = min(int(place.right[source]), lookahead)
        emitted = min(accepted + 1, count - at)
        spent = cost[source, lookahead] + (prices.lag[source] * place.lag[source] if lookahead > 0 else 0)
        rounds.append((at, source, lookahead, min(accepted, emitted), emitted, spent))
        ran = (np.arange(len(lags)) == source) & (lookahead > 0)
        missed = np.where(ran, int(emitted > lookahead), missed + emitted)
        at += emitted
    return Series(*(np.asarray(column) for column in zip(*rounds, strict=True)))


def cost_table(pool: Pool, prices: Prices) -> np.ndarray:
    """[N, A + 1] float64: a round of k drafts by each source that has nothing to catch up with."""
    cost = prices.verify[None, :].astype(np.float64) + prices.draft
    if pool.carrier is not None:
        cost[pool.carrier, 1:] += prices.ride
    return cost


def capped(record: Record, at: int) -> np.ndarray:
    """[N] drafts that a row may have at a position: all but its last token can be drafts."""
    return np.clip(record.offered[at], 0, max(record.limit - at - 1, 0))


def gather(records: Sequence[Record], series: Sequence[Series]) -> Replayed:
    """Texts walked one by one, as `replay` returns them."""
    longest = max(map(len, records))
    padded = (
        np.stack([np.pad(each, (0, longest - len(each))) for each in column]) for column in zip(*series, strict=True)
    )
    rounds = np.asarray([len(each.cost) for each in series])
    return Replayed(pool_of(records), tuple(record.category for record in records), rounds, Series(*padded))


def share_of_gap(rate: float, rule: float, best: float) -> float:
    """How much of the way from the rule to the oracle a selector goes: 0 at the rule's rate, 1 at the oracle's."""
    return (rate - rule) / (best - rule) if best > rule else 0.0


__all__ = [
    "Pick",
    "Place",
    "always",
    "best_fixed",
    "capped",
    "cost_table",
    "gather",
    "optimum",
    "oracle",
    "share_of_gap",
    "walk",
]
