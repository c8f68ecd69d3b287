"""Sources, signals and costs made up for selectors: five sources, two of which cost a pass and one rides."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.contracts import Seen, Signals, Steering
from jaxspec.select import Kinds
from jaxspec.select.cost import CostTable

KINDS = Kinds(
    names=("none", "lookup", "jacobi", "exit", "lm"),
    passes=(False, False, False, True, True),
    carrier=2,
    nodes=5,
    windows=(1, 2, 4, 8),
)
FREE_ALONE = Kinds(("none", "lookup", "suffix"), (False, False, False), 0, 0, (1, 2, 4, 8))
MOST = KINDS.lookahead


def signals_of(offered, *, steering=None, seen: Seen | None = None, **more) -> Signals:
    """Every row active and nothing matched, but for what is given; `steering` as keywords of `steered`."""
    offered = np.asarray(offered)
    nothing, everyone = np.zeros_like(offered), np.ones(len(offered), bool)
    fields: dict[str, Any] = {name: _array(value) for name, value in more.items()}
    return Signals(
        offered=jnp.asarray(offered, jnp.int32),
        match=fields.pop("match", _array(nothing)),
        lag=fields.pop("lag", _array(nothing)),
        active=fields.pop("active", _array(everyone)),
        seen=seen,
        steering=None if steering is None else steered(*offered.shape, **steering),
        **fields,
    )


def _array(value) -> jax.Array:
    value = np.asarray(value)
    return jnp.asarray(value, {"i": jnp.int32, "f": jnp.float32, "b": bool}[value.dtype.kind])


def steered(rows, sources, *, pinned=-1, weights=1.0, domain=-1, load=0.0, latency_budget=np.inf) -> Steering:
    """Of one value for all rows, or one a row."""

    def each(value, dtype):
        return jnp.broadcast_to(jnp.asarray(value, dtype), (rows,))

    return Steering(
        pinned=each(pinned, jnp.int32),
        weights=jnp.broadcast_to(jnp.asarray(weights, jnp.float32), (rows, sources)),
        domain=each(domain, jnp.int32),
        load=each(load, jnp.float32),
        latency_budget=each(latency_budget, jnp.float32),
        least_width=each(1, jnp.int32),
    )


def costs_of(*, kinds=KINDS, width=0.05, draft=0.1, lag=0.0, ride=0.2, seed=None) -> CostTable:
    """A plain step is 1; a token of a window costs `width`, a draft of a pass `draft`. A seed makes it irregular."""
    rng = np.random.default_rng(seed)
    grow = (lambda size: 1.0) if seed is None else (lambda size: rng.uniform(0.5, 1.5, size))
    steps = np.arange(kinds.lookahead + 1)
    widths = np.asarray(kinds.windows)
    table = (
        1 + np.cumsum(np.diff(widths, prepend=1) * width * grow(len(widths))),
        np.cumsum(np.asarray(kinds.passes)[:, None] * draft * (steps > 0) * grow((len(kinds.names), len(steps))), 1),
        np.asarray(kinds.passes) * lag,
        ride,
    )
    return CostTable(*(jnp.asarray(leaf, jnp.float32) for leaf in table))
