"""What counted rounds cost by a table: by it a clock's seconds are shared out to sources."""

import numpy as np

from jaxspec.contracts import Setup
from jaxspec.costs.first import guessed
from jaxspec.select import kinds_of
from jaxspec.select.cost import CostTable, widths_of
from jaxspec.select.kinds import Kinds
from jaxspec.telemetry import Counters, Price

MEASURED, GUESSED = "calibrated costs", "guessed costs"


def spent(table: CostTable, kinds: Kinds, counters: Counters) -> np.ndarray:
    """What each row's rounds cost by source [B, N] float64, in the table's unit.

    A round costs a plain step, what its drafts widen the window by, what drafting them took, and catching up. Drafts
    of a tail are counted with their own source, so that is charged for the width they added. Of several rows each pays
    as if the window were its own.
    """
    verify, draft, lag, ride = (np.asarray(cost, float) for cost in table)
    rounds, proposed, taken = (
        np.asarray(getattr(counters, name), float) for name in ("rounds", "proposed", "catch_up")
    )
    # rounds with at least k drafts, less those with more: those with k
    exact = -np.diff(np.concatenate([proposed, np.zeros_like(proposed[..., :1])], -1), axis=-1)
    wider = np.maximum(verify[widths_of(kinds.windows, kinds.lookahead)[1:]] - verify[0], 0.0)
    each = wider + np.where(np.asarray(kinds.passes)[:, None], draft[:, 1:], 0.0)  # [N, A]
    price = rounds * verify[0] + (exact * each).sum(-1) + taken * lag * np.asarray(kinds.passes)
    if kinds.carrier:
        price[:, kinds.carrier] += rounds[:, kinds.carrier] * ride
    return price


def price_of(table: CostTable, setup: Setup) -> Price:
    """The table as telemetry takes it, a plain round being 1."""
    kinds = kinds_of(setup.sources, setup.windows)
    same = all(np.array_equal(mine, rough) for mine, rough in zip(table, guessed(setup), strict=True))
    plain = float(np.asarray(table.verify)[0])
    return Price(GUESSED if same else MEASURED, lambda counters: spent(table, kinds, counters) / plain)


__all__ = ["price_of", "spent"]
