"""Cost tables as JSON that people read and write.

    {"verify": {"1": 0.030, "4": 0.044, "8": 0.046},         by window width in tokens, or a list of one a width
     "draft": {"feature": {"1": 0.008, "7": 0.050}},         what k drafts of a source add
     "lag": {"feature": 0.0004},                             what a token that a source has to catch up adds
     "ride": 0.005}                                          what a branch in the window adds

Widths and drafts that are not given lie on straight lines between those that are, 0 drafts costing 0; beyond the last
ones the line goes on. Seconds, or any one unit.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxspec.contracts import FREE, Setup
from jaxspec.select.cost import CostTable, check_costs

PARTS = ("verify", "draft", "lag", "ride")


def document(table: CostTable, names: Sequence[str], windows: Sequence[int]) -> dict[str, Any]:
    """A table as plain data, every number written out.

    Args:
        names: of the setup's sources, "none" first.
        windows: of the setup.
    """
    drafts, lag = np.asarray(table.draft, float), np.asarray(table.lag)
    return {
        "verify": _by(windows, np.asarray(table.verify)),
        "draft": {name: _by(range(1, drafts.shape[1]), drafts[i, 1:]) for i, name in enumerate(names) if i},
        "lag": {name: _short(lag[i]) for i, name in enumerate(names) if i},
        "ride": _short(table.ride),
    }


def _by(steps: Sequence[int], values: Sequence[float] | np.ndarray) -> dict[str, float]:
    return {str(step): _short(value) for step, value in zip(steps, values, strict=True)}


def _short(value: Any) -> float:
    """As many digits as a float32 has."""
    return float(f"{float(value):.7g}")


def read(path: str, setup: Setup) -> CostTable:
    """The table in a file, for a setup.

    Raises:
        ValueError: a file that cannot be read, or a table that does not say what the setup needs, in one sentence.
    """
    found = open_document(path)
    try:
        return for_setup(found, setup)
    except ValueError as error:
        raise ValueError(f"the cost table {path}: {error}") from error


def open_document(path: str) -> Any:
    """What a file of a table says, checked as JSON alone.

    Raises:
        ValueError: a file that cannot be read.
    """
    try:
        return json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"cannot read the cost table {path} ({error.strerror}); scripts/calibrate.py --out FILE writes one"
        ) from error
    except ValueError as error:
        raise ValueError(
            f"the cost table {path} is no JSON ({error}); scripts/calibrate.py --out FILE writes one"
        ) from error


def for_setup(given: Any, setup: Setup) -> CostTable:
    """Of a document: sources that cost nothing, never lag or have no branch need no entry."""
    table = parse(
        given,
        setup.names,
        setup.windows,
        paid=[source.cost != FREE for source in setup.sources],
        lags=[source.lag is not None for source in setup.sources],
        rides=setup.branch is not None,
    )
    return check_costs(setup, table)


def parse(
    given: Any,
    names: Sequence[str],
    windows: Sequence[int],
    *,
    paid: Sequence[bool],
    lags: Sequence[bool],
    rides: bool,
) -> CostTable:
    """A table of a document; sources that it names beyond `names` are for other setups.

    Args:
        paid: sources that must have a cost of drafts.
        lags: sources that must have a cost of catching up.
        rides: whether there must be a cost of a branch.

    Raises:
        ValueError: what is missing, by its name, or is no cost.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"it is {_kind(given)}; write an object with {', '.join(PARTS)}")
    if "verify" not in given:
        raise ValueError(f"it has no verify; give what a round costs at the window widths {_listed(windows)}")
    draft, lag = np.zeros((len(names), windows[-1])), np.zeros(len(names))
    drafts, catch_up = (_object(given, part) for part in ("draft", "lag"))
    for index, name in enumerate(names):
        if name in drafts:
            known = _steps(drafts[name], f"draft of {name}")
            draft[index] = _along({0: 0.0} | known, range(windows[-1]))
        elif paid[index]:
            raise ValueError(f'draft has no {name!r}; give what its drafts cost, for example {{"1": 0.01}}')
        if name in catch_up:
            lag[index] = _cost(catch_up[name], f"lag of {name}")
        elif lags[index]:
            raise ValueError(f"lag has no {name!r}; give what a token that it has to catch up costs, or 0")
    if rides and "ride" not in given:
        raise ValueError("it has no ride; give what the branch in the window costs")
    ride = _cost(given["ride"], "ride") if "ride" in given else 0.0
    parts = (_verify(given["verify"], windows), draft, lag, ride)
    return CostTable(*(jnp.asarray(np.asarray(part, np.float32)) for part in parts))


def _verify(given: Any, windows: Sequence[int]) -> np.ndarray:
    if isinstance(given, list):
        if len(given) != len(windows):
            raise ValueError(f"verify lists {len(given)} costs; the window widths are {_listed(windows)}, one for each")
        found = np.asarray([_cost(each, "verify") for each in given])
    else:
        known = _steps(given, "verify")
        if 1 not in known:
            raise ValueError('verify has no "1"; give what a plain step costs')
        if len(known) == 1 and len(windows) > 1:
            raise ValueError(f"verify has one width; give a second, of the window widths {_listed(windows)}")
        found = _along(known, windows)
    if found[0] <= 0:
        raise ValueError(f"verify of width 1 is {found[0]:g}; a plain step costs more than 0")
    return found


def _along(known: Mapping[int, float], steps: Sequence[int]) -> np.ndarray:
    """Values on straight lines between those known, the last line going on; never falling below 0."""
    at = sorted(known)
    values = [known[step] for step in at]
    found = np.interp(steps, at, values)
    if len(at) > 1:
        slope = (values[-1] - values[-2]) / (at[-1] - at[-2])
        found = np.where(np.asarray(steps) > at[-1], values[-1] + slope * (np.asarray(steps) - at[-1]), found)
    return np.maximum(found, 0.0)


def _steps(given: Any, what: str) -> dict[int, float]:
    """{"1": s, "3": s} with whole numbers from 1."""
    if not isinstance(given, Mapping) or not given:
        raise ValueError(f'{what} is {_kind(given)}; give an object by number of tokens, for example {{"1": 0.03}}')
    for key in given:
        if not (isinstance(key, str) and key.isdecimal() and int(key) > 0):
            raise ValueError(f"{what} has an entry {key!r}; entries are numbers of tokens from 1")
    return {int(key): _cost(value, f"{what}, {key}") for key, value in given.items()}


def _object(given: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    found = given.get(part, {})
    if not isinstance(found, Mapping):
        raise ValueError(f"{part} is {_kind(found)}; give an object by the name of the source")
    return found


def _cost(given: Any, what: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given) or given < 0:
        raise ValueError(f"{what} is {given!r}; a cost is a finite number from 0")
    return float(given)


def _kind(given: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(given), "a number")


def _listed(windows: Sequence[int]) -> str:
    return ", ".join(map(str, windows))


__all__ = ["document", "for_setup", "open_document", "parse", "read"]
