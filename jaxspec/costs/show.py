"""Cost tables for people, in milliseconds."""

from collections.abc import Sequence

import numpy as np
from rich.table import Table

from jaxspec.select.cost import CostTable


def tables(costs: CostTable, names: Sequence[str], windows: Sequence[int], *, title: str = "") -> list[Table]:
    """Windows with their ratio to a plain step; sources that cost something by drafts and lag; the branch below."""
    verify, draft, lag = (np.asarray(part, float) for part in (costs.verify, costs.draft, costs.lag))
    passes = Table(title=title or None, title_justify="left", caption_justify="left")
    for column in ("window", "ms", "to plain"):
        passes.add_column(column, justify="right")
    for width, seconds in zip(windows, verify, strict=True):
        passes.add_row(str(width), f"{1e3 * seconds:.2f}", f"{seconds / verify[0]:.2f}")
    dear = [index for index in range(len(names)) if draft[index].any() or lag[index]]
    if float(costs.ride):
        passes.caption = f"the branch in the window adds {1e3 * float(costs.ride):.2f} ms"
    if not dear:
        return [passes]
    drafts = Table(caption="ms that drafts add to a round, and that a token to catch up does", caption_justify="left")
    drafts.add_column("source", overflow="fold")
    for k in range(1, draft.shape[1]):
        drafts.add_column(str(k), justify="right", no_wrap=True)
    drafts.add_column("lag", justify="right", no_wrap=True)
    for index in dear:
        drafts.add_row(names[index], *(f"{1e3 * each:.1f}" for each in draft[index, 1:]), f"{1e3 * lag[index]:.3f}")
    return [passes, drafts]


__all__ = ["tables"]
