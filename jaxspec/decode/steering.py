"""What a caller says about the choice of source and lookahead, row by row, checked on the host in plain sentences."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import jax
import numpy as np

from jaxspec.contracts import Steering


def make_steering(
    names: Sequence[str],
    rows: int,
    *,
    source: str | Sequence[str | None] | None = None,
    weights: Mapping[str, float] | Sequence[Mapping[str, float]] = MappingProxyType({}),
    domain: int | Sequence[int] = -1,
    load: float | Sequence[float] = 0.0,
    latency_budget: float | Sequence[float] = math.inf,
    least_width: int | Sequence[int] = 1,
) -> Steering:
    """Every option is one value for all rows or a sequence of one a row. All become traced arrays.

    Args:
        names: of the setup's sources, in order.
        source: takes every round of the row, with as many drafts as the row may have; None lets the selector choose.
        weights: by source, times what the selector expects to gain by it: 1 where none is given, 0 bans the source.
        domain: the caller's tag for the kind of text, from 0; -1 without one.
        load: in [0, 1], share of the device's time that others wait for. At 1 selectors that weigh costs count a
            token of a window as dear as a plain step.
        latency_budget: seconds that a round may take, above 0; plain decoding is always allowed.
        least_width: tokens that the target's window has at the least, drafts or not; above 1 only to time wide windows.

    Raises:
        ValueError: a source that the setup does not have, or a value out of range.
    """
    pins = [source] * rows if source is None or isinstance(source, str) else list(source)
    tables = [weights] * rows if isinstance(weights, Mapping) else list(weights)
    for what, given in (("source", pins), ("weights", tables)):
        if len(given) != rows:
            raise ValueError(f"{what} has {len(given)} entries for {rows} rows; give one for all, or one a row")
    for name in [pin for pin in pins if pin is not None] + [name for table in tables for name in table]:
        if name not in names:
            raise ValueError(f"source {name!r} is not of this setup; choose among {', '.join(names)}")
    asked = np.asarray([[table.get(name, 1.0) for name in names] for table in tables], np.float64)
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused as infinite
        scale = asked.reshape(rows, len(names)).astype(np.float32)
    for row, column in np.argwhere(~(np.isfinite(scale) & (scale >= 0))):
        raise ValueError(f"the weight of {names[column]} in row {row} is {scale[row, column]}; it must be 0 or more")
    if names and np.any(scale[:, 0] != 1):
        raise ValueError(f"{names[0]!r} is plain decoding and has no weight; pin it, or ban the other sources")
    for row, pin in enumerate(pins):
        if pin is not None and scale[row, names.index(pin)] == 0:
            raise ValueError(f"source {pin!r} is pinned and banned in row {row}; do one of the two")
    tags = per_row("domain", domain, rows, np.int64)
    refuse("domain", tags, (tags >= -1) & (tags < 2**31), "a tag from 0, or -1 for none")
    busy = per_row("load", load, rows, np.float32)
    refuse("load", busy, (busy >= 0) & (busy <= 1), "from 0 to 1")
    budget = per_row("latency_budget", latency_budget, rows, np.float32)
    refuse("latency_budget", budget, budget > 0, "above 0 seconds")
    width = per_row("least_width", least_width, rows, np.int64)
    refuse("least_width", width, (width >= 1) & (width < 2**31), "1 or more")
    return Steering(
        pinned=jax.device_put(np.asarray([-1 if pin is None else names.index(pin) for pin in pins], np.int32)),
        weights=jax.device_put(scale),
        domain=jax.device_put(tags.astype(np.int32)),
        load=jax.device_put(busy),
        latency_budget=jax.device_put(budget),
        least_width=jax.device_put(width.astype(np.int32)),
    )


def per_row(name: str, value: object, rows: int, dtype: type) -> np.ndarray:
    """One number for all rows, or one a row, as [B]."""
    given = np.asarray(value)
    if given.ndim > 1 or (given.ndim == 1 and given.shape[0] != rows) or given.dtype.kind not in "iuf":
        raise ValueError(f"{name} is {value!r} for {rows} rows; give one number, or one number a row")
    if np.issubdtype(dtype, np.integer) and not np.all(np.isfinite(given) & (given == np.floor(given))):
        raise ValueError(f"{name} is {value!r}; give whole numbers")
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused as infinite
        return np.broadcast_to(given.astype(dtype), (rows,))


def refuse(name: str, values: np.ndarray, good: np.ndarray, rule: str) -> None:
    """A plain sentence for the first row whose value is not good."""
    if not np.all(good):
        row = int(np.argmin(good))
        raise ValueError(f"{name} of row {row} is {values[row]}; it must be {rule}")
