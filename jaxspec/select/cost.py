"""What a round costs on this device: measured tables that selectors weigh expected tokens against."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxspec.contracts import Setup, Signals


class CostTable(NamedTuple):
    """Seconds, or any one unit, for one number of rows. All traced: another table never recompiles."""

    verify: Float[Array, "Z"]  # float32, a round without drafting by window width, everything but the draft included
    draft: Float[Array, "N A+1"]  # float32, what k drafts of a source add to a round; 0 where k is 0
    lag: Float[Array, "N"]  # float32, what a token that a source has to catch up adds
    ride: Float[Array, ""]  # float32, what the setup's branch in the window adds


def guess(paid: tuple[bool, ...], nodes: int, windows: tuple[int, ...]) -> CostTable:
    """Relative costs for a device on which nothing was measured: a plain step is 1.

    A window's token costs a twentieth of the step's weights that are read anyway, a model draft's a tenth of a step.
    Rough on purpose: where it matters, measure (`scripts/calibrate.py`).

    Args:
        paid: sources that cost a model pass.
        nodes: of the setup's branch.
    """
    widths, steps = np.asarray(windows, np.float32), np.arange(windows[-1], dtype=np.float32)
    each = np.where(paid, 0.1, 0.0).astype(np.float32)
    table = (1 + 0.05 * (widths - 1), each[:, None] * steps, 0.1 * each, np.float32(0.05 * nodes))
    return CostTable(*(jnp.asarray(leaf, jnp.float32) for leaf in table))


def check_costs(setup: Setup, costs: CostTable) -> CostTable:
    """A table that belongs to the setup, as float32 arrays.

    Raises:
        ValueError: shapes of another setup, or a number that is no cost.
    """
    shapes = {
        "verify": (len(setup.windows),),
        "draft": (len(setup.sources), setup.lookahead + 1),
        "lag": (len(setup.sources),),
        "ride": (),
    }
    for name, shape in shapes.items():
        have = np.asarray(getattr(costs, name), np.float64)
        if have.shape != shape:
            raise ValueError(
                f"{name} of the cost table has shape {have.shape}; this setup has {len(setup.sources)} sources, "
                f"lookahead {setup.lookahead} and window widths {setup.windows}, so give {shape}"
            )
        if not np.all(np.isfinite(have) & (have >= 0)) or (name == "verify" and not np.all(have > 0)):
            raise ValueError(f"{name} of the cost table is {have.tolist()}; costs are finite numbers from 0")
    return CostTable(*(jnp.asarray(getattr(costs, name), jnp.float32) for name in shapes))


def widths_of(windows: tuple[int, ...], lookahead: int) -> np.ndarray:
    """Index of the window width that a round of k drafts runs, for k = 0 .. lookahead; int32.

    windows 1 2 4 8   ->   0 1 2 2 3 3 3 3
    """
    return np.searchsorted(np.asarray(windows), np.arange(lookahead + 1) + 1).astype(np.int32)


def loaded(verify: Float[Array, "Z"], windows: tuple[int, ...], load: Float[Array, ""]) -> Float[Array, "Z"]:
    """Costs of the windows where others wait for the device: between what a round takes and what its tokens are worth.

    Alone, a window's extra tokens ride on weights that are read anyway. Where others would have filled the device, each
    of them costs what a token of a plain step costs.
    """
    dear = verify[0] * jnp.asarray(windows, jnp.float32)
    return (1 - load) * verify + load * jnp.maximum(verify, dear)


def by_drafts(costs: CostTable, signals: Signals, windows: tuple[int, ...]) -> Float[Array, "X"]:
    """Cost of a window by the drafts in it, at the load of the row that is most loaded; 0 drafts are a plain step."""
    load = jnp.float32(0) if signals.steering is None else jnp.max(jnp.where(signals.active, signals.steering.load, 0))
    return loaded(costs.verify, windows, load)[widths_of(windows, windows[-1] - 1)]


__all__ = ["CostTable", "by_drafts", "check_costs", "guess", "loaded", "widths_of"]
