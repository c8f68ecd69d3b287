"""What every source would propose at every place of a text: the record that all selectors are judged by.

    position i    the tokens before i are committed, token i is what the next round emits first
    right[i, n]   how many of source n's drafts there are the text that follows, up to the first one that is not
    a round at i  k drafts of source n:   accepted a = min(right[i, n], k),   the next round is at i + a + 1

A record holds what sources would give at any place, so that any way of choosing can be played on it afterwards.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np

from jaxspec.contracts import FREE, MODEL

SEEN = ("top", "margin", "entropy")
PLACES = ("offered", "right", "match", "confidence", *SEEN, "domain", "ids")
"""Arrays of a record: one entry a position."""

FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Pool:
    """The sources that a record is of, in order; source 0 is "none". Hashable.

    Raises:
        ValueError: no "none" at the beginning, a name twice, or fields of different length.
    """

    names: tuple[str, ...]
    costs: tuple[str, ...]  # FREE or MODEL, as in `jaxspec.contracts`
    lags: tuple[bool, ...]  # whether the source has a cache of its own, which falls behind while it is not asked
    carrier: int | None = None  # index of the source whose branch rides in the window; None without one
    nodes: int = 0  # of that branch

    def __post_init__(self) -> None:
        if not self.names or self.names[0] != "none" or len(set(self.names)) != len(self.names):
            raise ValueError(f"the sources are {self.names}; name each once, and none first")
        if not len(self.names) == len(self.costs) == len(self.lags) or set(self.costs) - {FREE, MODEL}:
            raise ValueError(f"sources {self.names} have costs {self.costs} and lags {self.lags}; give one of each")

    def index(self, name: str) -> int:
        """Place of a source.

        Raises:
            ValueError: a name that is not there.
        """
        if name not in self.names:
            raise ValueError(f"source {name!r} is not of this record; choose among {', '.join(self.names)}")
        return self.names.index(name)


@dataclasses.dataclass(frozen=True)
class Record:
    """One text. n positions, N sources, A drafts at the most.

    Raises:
        ValueError: arrays that do not fit together, or a run of right drafts beyond what was offered.
    """

    pool: Pool
    offered: np.ndarray  # [n, N] int32, drafts at hand, not capped by where the text is to end
    right: np.ndarray  # [n, N] int32, leading drafts that the text confirms; past its end nothing is confirmed
    match: np.ndarray  # [n, N] int32, as in `jaxspec.contracts.Proposal`
    confidence: np.ndarray  # [n, N, A] float32, of each draft; 1 where a source has no law or no draft
    top: (
        np.ndarray
    )  # [n] float32, with margin and entropy: how the target stood where it made token i - 1, as in `Seen`
    margin: np.ndarray  # [n] float32
    entropy: np.ndarray  # [n] float32
    domain: np.ndarray  # [n] int32, cluster of the text's hidden states before token i; -1 unknown
    ids: np.ndarray  # [n] int32, the text
    prompt_length: int  # tokens
    limit: int  # tokens that were asked for; the text may have ended before
    category: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        count, sources = len(self.ids), len(self.pool.names)
        each = (count, sources)
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(PLACES, (count,))
        shapes |= {"offered": each, "right": each, "match": each, "confidence": (*each, self.confidence.shape[-1])}
        wrong = [name for name, shape in shapes.items() if getattr(self, name).shape != shape]
        if count < 1 or wrong:
            said = {name: getattr(self, name).shape for name in wrong}
            raise ValueError(f"record {self.name!r} has {count} tokens, {sources} sources and arrays {said}")
        if np.any(self.right > self.offered) or np.any(self.offered > self.depth) or np.any(self.right < 0):
            raise ValueError(f"record {self.name!r}: 0 <= right <= offered <= {self.depth} does not hold everywhere")
        if self.limit < count or np.any(self.right > np.arange(count, 0, -1)[:, None]):
            raise ValueError(
                f"record {self.name!r} of {count} tokens: limit {self.limit}, or right drafts past the end"
            )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def depth(self) -> int:
        """Drafts at the most."""
        return self.confidence.shape[-1]


class Tape(NamedTuple):
    """The arrays of one text, or of several behind one another, as the compiled replay reads them."""

    offered: Any
    right: Any
    match: Any
    confidence: Any
    top: Any
    margin: Any
    entropy: Any
    domain: Any
    ids: Any
    length: Any  # tokens of the text; what follows is padding
    prompt_length: Any
    limit: Any


def stack(records: Sequence[Record]) -> Tape:
    """Records as one [R, n, ...] tape, each padded to the longest one.

    Raises:
        ValueError: no records, or of different sources or depths.
    """
    pool_of(records)
    longest = max(map(len, records))

    def padded(name: str) -> np.ndarray:
        each = [getattr(record, name) for record in records]
        return np.stack([np.pad(a, ((0, longest - len(a)), *[(0, 0)] * (a.ndim - 1))) for a in each])

    sizes = (np.asarray([f(r) for r in records], np.int32) for f in (len, lambda r: r.prompt_length, lambda r: r.limit))
    return Tape(*(padded(name) for name in PLACES), *sizes)


def pool_of(records: Sequence[Record]) -> Pool:
    """The sources that all the records are of.

    Raises:
        ValueError: no records, or of different sources or depths.
    """
    if not records:
        raise ValueError("there are no records; make some with scripts/replay.py --record")
    if len({(record.pool, record.depth) for record in records}) > 1:
        raise ValueError("the records are of different sources or depths; replay those of one setup together")
    return records[0].pool


def run_length(drafts: np.ndarray, count: int, following: np.ndarray) -> int:
    """How many of the first `count` drafts begin the tokens that follow.   5 8 9 in 5 8 2 7 -> 2"""
    most = min(count, len(following))
    wrong = np.flatnonzero(drafts[:most] != following[:most])
    return int(wrong[0]) if len(wrong) else most


def save(records: Sequence[Record], folder: str | Path, settings: dict[str, Any] | None = None) -> None:
    """Write a folder: one .npz a record and `records.json`, which is written last.

    Args:
        settings: how the records were made, for people and later checks; JSON values.
    """
    pool, folder = pool_of(records), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    listed = []
    for number, record in enumerate(records):
        file = f"{number:05d}.npz"
        np.savez_compressed(folder / file, allow_pickle=False, **{name: getattr(record, name) for name in PLACES})
        about = {name: getattr(record, name) for name in ("prompt_length", "limit", "category", "name")}
        listed.append({"file": file, **about})
    said = {"format": FORMAT, "pool": dataclasses.asdict(pool), "settings": settings or {}, "records": listed}
    beside = folder / "records.part"
    beside.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    beside.replace(folder / "records.json")


def load(folder: str | Path) -> tuple[list[Record], dict[str, Any]]:
    """Records of a folder, and the settings they were made with.

    Raises:
        ValueError: no records there, or some that are broken.
    """
    folder = Path(folder)
    try:
        said = json.loads((folder / "records.json").read_text(encoding="utf-8"))
        if said["format"] != FORMAT:
            raise ValueError(f"format {said['format']}, where {FORMAT} is read")
        about = said["pool"]
        names, costs, lags = (tuple(about[field]) for field in ("names", "costs", "lags"))
        pool = Pool(names, costs, lags, about["carrier"], about["nodes"])
        return [_read(folder, pool, dict(each)) for each in said["records"]], said["settings"]
    except (OSError, EOFError, BadZipFile, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder} holds no readable records ({error}); make them with replay.py --record") from None


def _read(folder: Path, pool: Pool, about: dict[str, Any]) -> Record:
    with (folder / about.pop("file")).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return Record(pool=pool, **{name: arrays[name] for name in PLACES}, **about)


__all__ = ["PLACES", "Pool", "Record", "Tape", "load", "pool_of", "run_length", "save", "stack"]
