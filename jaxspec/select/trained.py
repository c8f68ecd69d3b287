"""Weights for selectors that scripts/train_router.py has made: a router's network, or a prior for goodput.

    router.json           what it is: kind, names of the sources, version of the features, the target's
                          fingerprint and sizes where it is known, and a card for people
    router.safetensors    arrays by name, one entry a source

A setup takes what was trained for its sources by their names; sources that were not trained keep the naive weights,
which expect of a draft what its card says.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from jaxspec.select.features import VERSION, WIDTH
from jaxspec.select.goodput import Prior, no_prior
from jaxspec.select.kinds import Kinds
from jaxspec.select.logistic import Model
from jaxspec.select.router import Net, naive_net

RECORD, ARRAYS, FORMAT = "router.json", "router.safetensors", 1
MLP, PRIOR = "mlp", "prior"
KINDS = {"router": MLP, "goodput": PRIOR}
"""What each selector takes."""


class Target(NamedTuple):
    """The model whose texts something was trained on."""

    weights: str  # fingerprint
    hidden_size: int
    vocab_size: int


def read_trained(
    folder: str | Path, selector: str, kinds: Kinds, expects: Mapping[str, float] = MappingProxyType({})
) -> Net | Prior:
    """What was trained, for a setup's sources: `SelectorParams.prior`.

    Args:
        selector: "router" or "goodput".
        expects: of `no_prior`, which goodput's other sources have.

    Raises:
        ValueError: a folder that holds none, is damaged, or is of another kind, other features or other sources.
    """
    folder = Path(folder)
    record = read_record(folder)
    if record["kind"] != KINDS[selector]:
        other = next(name for name, kind in KINDS.items() if kind == record["kind"])
        raise ValueError(f"{folder} holds a {record['kind']}, which {other} takes; give it as {other}:{folder}")
    where = _places(folder, record, kinds)
    start = naive_net(kinds.free) if selector == "router" else no_prior(kinds, expects)
    leaves, shapes = named(start), record["names"]
    arrays = _arrays(folder, record)
    wanted = {name: (len(shapes), *leaf.shape[1:]) for name, leaf in leaves.items()}
    found = {name: array.shape for name, array in arrays.items()}
    if found != wanted or not all(np.all(np.isfinite(array)) for array in arrays.values()):
        raise ValueError(f"{folder / ARRAYS} does not hold finite {', '.join(wanted)}; train it again")
    own, theirs = (np.asarray(each, np.int64) for each in zip(*where, strict=True))
    put = {name: jnp.asarray(leaf).at[own].set(jnp.asarray(arrays[name][theirs])) for name, leaf in leaves.items()}
    tree = jax.tree.structure(start)
    return jax.tree.unflatten(tree, [put[name] for name in leaves])


def _places(folder: Path, record: Mapping[str, Any], kinds: Kinds) -> list[tuple[int, int]]:
    """Places of the same source here and there; at the least one besides "none"."""
    if record["features"] != [VERSION, WIDTH]:
        version, width = record["features"]
        raise ValueError(
            f"{folder} was trained on features {version} ({width} columns); this version has {VERSION} "
            f"({WIDTH} columns), so train it again with scripts/train_router.py"
        )
    names = record["names"]
    where = [(kinds.names.index(name), place) for place, name in enumerate(names) if name in kinds.names]
    if not any(kinds.names[own] != "none" for own, _ in where):
        raise ValueError(
            f"{folder} was trained for {', '.join(names[1:])}; this setup has {', '.join(kinds.names[1:]) or 'none'}, "
            "so train one on records of these sources"
        )
    for own, place in where:
        if record["passes"][place] != kinds.passes[own]:
            raise ValueError(f"{folder} was trained for another kind of source {names[place]!r}; train it again")
    return where


def read_record(folder: str | Path) -> dict[str, Any]:
    """What an artifact says of itself.

    Raises:
        ValueError: a folder that holds none, or a record that cannot be read.
    """
    file = Path(folder) / RECORD
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        whole = record["format"] == FORMAT and record["kind"] in (MLP, PRIOR)
        features = [int(each) for each in record["features"]]
        names, passes = [str(name) for name in record["names"]], [bool(each) for each in record["passes"]]
        if not whole or len(features) != 2 or len(names) != len(passes) or not isinstance(record["sha256"], str):
            raise ValueError(f"it is not of format {FORMAT}")
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"{folder} has no {RECORD}; give the folder of a trained router, or train one with scripts/train_router.py"
        ) from None
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} cannot be read ({error}); train the router again") from None
    return record | {"names": names, "passes": passes, "features": features}


def _arrays(folder: Path, record: Mapping[str, Any]) -> dict[str, np.ndarray]:
    try:
        content = (folder / ARRAYS).read_bytes()
        if hashlib.sha256(content).hexdigest() == record["sha256"]:
            return safetensors.numpy.load(content)
    except (OSError, safetensors.SafetensorError):
        pass
    raise ValueError(f"{folder / ARRAYS} is truncated or was changed; train or copy the router again")


def named(weights: Net | Prior) -> dict[str, jax.Array]:
    """The arrays by name, in the order of the tree.   Prior -> takes.weights, takes.slopes, draws.weights, .. tried"""
    found = {}
    for name, value in weights._asdict().items():
        found |= {f"{name}.{leaf}": each for leaf, each in value._asdict().items()} if _nested(value) else {name: value}
    return found


def _nested(value: Any) -> bool:
    return isinstance(value, Model)


def write_trained(
    folder: Path, weights: Net | Prior, kinds: Kinds, card: Mapping[str, Any], target: Target | None = None
) -> None:
    """Write an artifact's two files; what the arrays are named and the record says is what `read_trained` wants.

    Args:
        target: whose texts it was trained on, where that is known.
    """
    arrays = {name: np.asarray(leaf, np.float32) for name, leaf in named(weights).items()}
    content = safetensors.numpy.save(arrays)
    (folder / ARRAYS).write_bytes(content)
    record = {
        "format": FORMAT,
        "kind": MLP if isinstance(weights, Net) else PRIOR,
        "names": list(kinds.names),
        "passes": list(kinds.passes),
        "features": [VERSION, WIDTH],
        "sha256": hashlib.sha256(content).hexdigest(),
        "target": None if target is None else target.weights,
        "sizes": None if target is None else [target.hidden_size, target.vocab_size],
        "card": dict(card),
    }
    (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


__all__ = ["KINDS", "MLP", "PRIOR", "RECORD", "Target", "named", "read_record", "read_trained", "write_trained"]
