"""Measured tables on disk, one file for each thing that was measured, in the cache folder's `costs`."""

import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxspec.costs.written import document, parse
from jaxspec.files import write_beside
from jaxspec.machine import cores, version_of
from jaxspec.models import ModelConfig
from jaxspec.select.cost import CostTable
from jaxspec.telemetry import cache_folder

CAPACITIES = 512
"""Tables are kept for capacities up to this and its fourfolds, 512, 2048, 8192 tokens: attention costs little."""


@dataclasses.dataclass(frozen=True)
class Key:
    """What a table was measured for; all but the versions say which file it is in."""

    device: str  # kind, as jax says it
    platform: str
    cores: int  # of a CPU; 0 where they do not matter
    mesh: str  # "data=1,model=4"; "" on one device
    model: str  # digest of the target's config: costs come from sizes, not from weights
    dtype: str
    rows: int
    sources: tuple[str, ...]
    windows: tuple[int, ...]
    capacity: int  # rounded up as `CAPACITIES` says
    jaxspec: str  # versions
    jax: str

    @property
    def lasting(self) -> dict[str, Any]:
        """The key without the versions, as JSON gives it back."""
        fields = {name: value for name, value in dataclasses.asdict(self).items() if name not in VERSIONS}
        return json.loads(json.dumps(fields))


VERSIONS = ("jaxspec", "jax")


@dataclasses.dataclass(frozen=True)
class Stored:
    """A table from disk."""

    key: dict[str, Any]  # as `Key.lasting`
    table: CostTable
    seconds_taken: float  # by measuring it
    date: str  # of its last change, UTC


def make_key(
    config: Any,
    *,
    dtype: DTypeLike,
    rows: int,
    sources: Sequence[str],
    windows: Sequence[int],
    capacity: int,
    mesh: Mesh | str | None = None,
) -> Key:
    """Of an engine on this machine's devices.

    Args:
        config: of the target, `ModelConfig` or anyone's; only its size and kind count.
        sources: their names, "none" first.
        capacity: tokens a row's buffers hold.
        mesh: devices, or only their number by axis, of the default kind; one device where None.
    """
    device = (mesh.devices.flat if isinstance(mesh, Mesh) else jax.devices())[0]
    plain = config
    if isinstance(config, ModelConfig):
        plain = dataclasses.replace(config, fused=False, bos_id=None, eos_ids=())
    return Key(
        device=device.device_kind,
        platform=device.platform,
        cores=cores() if device.platform == "cpu" else 0,
        mesh=",".join(f"{axis}={size}" for axis, size in mesh.shape.items()) if isinstance(mesh, Mesh) else mesh or "",
        model=hashlib.sha256(repr(plain).encode()).hexdigest()[:16],
        dtype=jax.numpy.dtype(dtype).name,
        rows=rows,
        sources=tuple(sources),
        windows=tuple(windows),
        capacity=_rounded(capacity),
        jaxspec=_version(),
        jax=jax.__version__,
    )


def save(key: Key, table: CostTable, seconds_taken: float) -> Path:
    """Write a table whole, beside its place first, and say where it is.

    Raises:
        OSError, ValueError: a cache folder that cannot be written.
    """
    path = _path(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "key": key.lasting,
        "versions": {name: getattr(key, name) for name in VERSIONS},
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds_taken": round(seconds_taken, 3),
        **document(table, key.sources, key.windows),
    }
    write_beside(str(path), json.dumps(content, indent=1) + "\n")
    return path


def find(key: Key, *, note: Callable[[str], None] = lambda line: None) -> CostTable | None:
    """The table that is stored for a key; None where there is none, or none that can be used.

    Args:
        note: told in a line why a table that is there is not used.
    """
    found = look_up(key, note=note)
    return None if found is None else found.table


def look_up(key: Key, *, note: Callable[[str], None] = lambda line: None) -> Stored | None:
    """As `find`, with what is known of the table."""
    path = _path(key)
    if not path.exists():
        return None
    try:
        content = _content(path)
        if content["key"] != key.lasting:
            raise ValueError("it is of another engine")
        then, now = content["versions"], {name: getattr(key, name) for name in VERSIONS}
        if then != now:
            words = ", ".join(f"{name} {then.get(name, 'unknown')}, now {now[name]}" for name in VERSIONS)
            note(f"the stored costs were measured with other versions ({words}); they are measured again")
            return None
        return _stored(content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        note(f"the stored costs in {path} are broken ({error}); they are measured again")
        return None


def every() -> Iterator[Stored]:
    """All tables of these versions of jaxspec and jax, the latest first; what cannot be read is left out."""
    paths = (cache_folder() / "costs").glob("*.json")
    for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            content = _content(path)
            if content["versions"] == {"jaxspec": _version(), "jax": jax.__version__}:
                yield _stored(content)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue


def _content(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    return found


def _stored(content: dict[str, Any]) -> Stored:
    names, windows = content["key"]["sources"], content["key"]["windows"]
    said = [index > 0 for index in range(len(names))]  # all but "none" are written out
    table = parse(content, names, windows, paid=said, lags=said, rides=True)
    return Stored(content["key"], table, float(content["seconds_taken"]), str(content["date"]))


def _path(key: Key) -> Path:
    digest = hashlib.sha256(json.dumps(key.lasting, sort_keys=True).encode()).hexdigest()[:16]
    device = re.sub(r"[^a-z0-9]+", "-", key.device.lower()).strip("-") or "device"
    return cache_folder() / "costs" / f"{device}-{key.dtype}-rows{key.rows}-{digest}.json"


def _rounded(capacity: int) -> int:
    """100 -> 512, 600 -> 2048"""
    width = CAPACITIES
    while width < capacity:
        width *= 4
    return width


def _version() -> str:
    return version_of("jaxspec-decode") or "uninstalled"


__all__ = ["Key", "Stored", "every", "find", "look_up", "make_key", "save"]
