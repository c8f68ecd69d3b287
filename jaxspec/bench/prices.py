"""What rounds of a replay are charged: a cost table by window width, or a curve by the number of drafts."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from jaxspec.bench.record import Pool, Record, pool_of
from jaxspec.contracts import MODEL

CURVES: dict[str, Callable[[int], float]] = {
    "flat": lambda k: 1 + 0.04 * k,
    "cpu": lambda k: 1.0 if k == 0 else 1.15 + 0.06 * k,
}
"""Plain steps that a round takes whose window holds k drafts."""


@runtime_checkable
class Priced(Protocol):
    """What rounds cost, in any unit of time: a table as `jaxspec.select.cost` keeps it."""

    @property
    def verify(self) -> Any: ...  # [Z] a round of the z-th window width, without drafting
    @property
    def draft(self) -> Any: ...  # [N, A + 1] what drafting k tokens by a source adds
    @property
    def lag(self) -> Any: ...  # [N] what a token that a source has to catch up with adds
    @property
    def ride(self) -> Any: ...  # [] what the branch in the window adds


class Prices(NamedTuple):
    """Costs by the number of drafts, host or device arrays."""

    verify: Any  # [A + 1] a round whose window holds k drafts
    draft: Any  # [N, A + 1]
    lag: Any  # [N]
    ride: Any  # []


def priced(costs: Priced, records: Sequence[Record], windows: Sequence[int] | None = None) -> Prices:
    """Costs by the number of drafts, checked against what the records hold; float32 numpy.

    Raises:
        ValueError: a window or drafts that no entry is for.
    """
    pool, depth = pool_of(records), records[0].depth
    verify, draft, lag = (np.asarray(each, np.float32) for each in (costs.verify, costs.draft, costs.lag))
    widths = np.arange(1, len(verify) + 1) if windows is None else np.asarray(windows)
    if len(widths) != len(verify) or widths[-1] < depth + 1:
        raise ValueError(
            f"the costs have {len(verify)} times to verify, for windows up to {widths[-1]}; "
            f"the records have {depth} drafts, so give times up to width {depth + 1}"
        )
    if draft.shape[0] != len(pool.names) or draft.shape[1] < depth + 1 or lag.shape != (len(pool.names),):
        raise ValueError(
            f"the costs have drafting times {draft.shape} and lag times {lag.shape}; the records have "
            f"{len(pool.names)} sources and {depth} drafts, so give ({len(pool.names)}, {depth + 1})"
        )
    by_drafts = verify[np.searchsorted(widths, np.arange(1, depth + 2))]
    return Prices(by_drafts, draft[:, : depth + 1], lag, np.float32(costs.ride))


def curve_prices(curve: str, pool: Pool, depth: int, draft_step: float) -> Prices:
    """Costs in plain steps by a curve's name; every width is a window of its own, and to catch up costs nothing.

    Args:
        draft_step: what each draft of a model costs, in plain steps.

    Raises:
        ValueError: an unknown curve, or a draft step that is no cost.
    """
    if curve not in CURVES:
        raise ValueError(f"costs {curve!r} are unknown; choose {', '.join(CURVES)}, or a file of a cost table")
    if not (np.isfinite(draft_step) and draft_step >= 0):
        raise ValueError(f"a draft step of {draft_step} plain steps is no cost; give 0 or more")
    drafts = np.arange(depth + 1)
    return Prices(
        verify=np.asarray([CURVES[curve](int(k)) for k in drafts], np.float32),
        draft=np.asarray([drafts * (draft_step if kind == MODEL else 0.0) for kind in pool.costs], np.float32),
        lag=np.zeros(len(pool.names), np.float32),
        ride=np.float32(0),
    )


__all__ = ["CURVES", "Priced", "Prices", "curve_prices", "priced"]
