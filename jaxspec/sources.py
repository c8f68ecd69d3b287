"""What the names of draft sources stand for: trained drafts and tables, found by the weights of their target."""

import dataclasses
import functools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxspec.checkpoint import Artifact, attach, fingerprint, open_draft
from jaxspec.drafts.ngram import load_ngram, read_record, vocabulary_digest
from jaxspec.models import LanguageModel, ModelConfig, for_length, fuse, language_model
from jaxspec.models.heads import KINDS, DraftConfig
from jaxspec.select import weighs
from jaxspec.select.features import VERSION, WIDTH
from jaxspec.select.trained import PRIOR
from jaxspec.select.trained import RECORD as TRAINED
from jaxspec.sharding import replicated
from jaxspec.text import Tokenizer
from jaxspec.typing import Params, PyTree

RECORD = "draft.json"
TABLE = "ngram"
SHELF = Path(__file__).resolve().parent.parent / "checkpoints"
"""Where artifacts are looked for, as */KIND, after the folder that JAXSPEC_ARTIFACTS names."""

PREFERRED = ("feature", "lm", "exit", "medusa")
"""Kinds of trained drafts, best first: where none is named, the first of the target's that pays joins lookup."""

NAMES = (
    "lookup, suffix, ngram[:PATH], medusa[:PATH], feature[:PATH], exit[:LAYERS or PATH], lm[:MODEL or PATH] "
    "and jacobi[:W:N:G]"
)


class Wanted(NamedTuple):
    """An artifact that a name asks for."""

    kind: str
    folder: Path | None  # None: the one that was made for the target


@dataclasses.dataclass(frozen=True)
class Made:
    """An artifact in memory."""

    config: DraftConfig | None  # None for a table
    params: PyTree
    accepts: float | None = None  # share of first drafts that the target took on held-out prompts, by the card


def wanted(draft: str) -> Wanted | None:
    """The artifact that a name stands for; None for a source that needs none.

    exit:8 is the target's own first layers, exit:FOLDER a trained one; lm:NAME is a model unless NAME is a folder that
    holds a trained draft.
    """
    kind, colon, rest = draft.partition(":")
    if kind not in (*KINDS, TABLE) or (kind == "exit" and rest.isdecimal()):
        return None
    if kind == "lm" and colon and not (Path(rest) / RECORD).is_file():
        return None
    return Wanted(kind, Path(rest) if colon else None)


def check_draft(draft: str) -> None:
    """Refuse a source that no name stands for, or whose artifact nobody made, before anything is loaded.

    Raises:
        ValueError: in a sentence with the names that there are, or the command that makes the artifact.
    """
    kind, colon, rest = draft.partition(":")
    plain = kind in ("lookup", "suffix", "jacobi") and not colon
    if not (plain or re.fullmatch(r"jacobi:\d+:\d+:\d+", draft) or (kind in (*KINDS, TABLE) and (rest or not colon))):
        raise ValueError(f"draft source {draft!r} is unknown; choose among {NAMES}")
    asked = wanted(draft)
    if asked is None:
        return
    if asked.folder is None:
        if next(shelved(asked.kind), None) is None:
            raise missing(asked.kind)
    elif not (asked.folder / RECORD).is_file():
        raise ValueError(f"{draft!r}: {asked.folder} has no {RECORD}; {_make(asked.kind, str(asked.folder))}")
    elif (found := _kind(_record(asked.folder / RECORD))) not in (None, asked.kind):
        raise ValueError(f"{draft!r}: {asked.folder} holds a draft of kind {found}; give it as {found}:PATH")


def shelved(kind: str) -> Iterator[Path]:
    """Folders of artifacts of a kind, of any target."""
    for file in _files(kind, RECORD):
        if _kind(_record(file)) == kind:
            yield file.parent


def _files(folder: str, name: str) -> Iterator[Path]:
    """Files of a name in the folders of a name, of any target."""
    own = os.environ.get("JAXSPEC_ARTIFACTS")
    for shelf in ([Path(own).expanduser()] if own else []) + [SHELF]:
        yield from sorted(shelf.glob(f"*/{folder}/{name}"))


def missing(kind: str) -> ValueError:
    """The error for an artifact that was not made for this target."""
    where = " or ".join(["checkpoints", *(["$JAXSPEC_ARTIFACTS"] if os.environ.get("JAXSPEC_ARTIFACTS") else [])])
    about = "n-gram table" if kind == TABLE else f"trained {kind} draft"
    return ValueError(f"draft source {kind!r}: there is no {about} of this target in {where}; {_make(kind, '')}")


def _make(kind: str, folder: str) -> str:
    out = folder or f"checkpoints/NAME/{kind}"
    if kind == TABLE:
        command = f"make one with scripts/build_ngram.py --target TARGET --corpus FILE --out {out}"
        return f"{command}, or give its folder as {kind}:PATH"
    return (
        f"train one with scripts/train_draft.py --kind {kind} --target TARGET --corpus DIR --out {out}, "
        f"or give its folder as {kind}:PATH"
    )


def _record(file: Path) -> dict[str, Any]:
    """What a record says; nothing where it cannot be read, which opening it explains."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _kind(record: dict[str, Any]) -> str | None:
    config = record.get("config")
    return record.get("kind", config.get("kind") if isinstance(config, dict) else None)


def opened(draft: str) -> Artifact | None:
    """The trained draft in the folder that a name gives; None where it gives none. A table is only looked at."""
    check_draft(draft)
    asked = wanted(draft)
    if asked is None or asked.folder is None:
        return None
    if asked.kind == TABLE:
        read_record(asked.folder)
        return None
    return open_draft(asked.folder)


WORTH = 1.7
"""Tokens a round that a trained draft must give to be used unasked: a round of three of its drafts costs as much as
1.65 tokens of plain decoding (SmolLM2 with its feature draft on a CPU)."""


def pays(record: Mapping[str, Any]) -> bool:
    """Whether a trained draft gave enough tokens a round on held-out prompts, by its card; yes if it has none."""
    said: Any = record
    for name in ("card", "validation", "engine", "overall"):
        said = said.get(name, {}) if isinstance(said, Mapping) else {}
    tokens = said.get("mean_accepted_tokens", WORTH) if isinstance(said, Mapping) else WORTH
    return tokens >= WORTH


def accepts(record: Mapping[str, Any]) -> float | None:
    """Share of a trained draft's first drafts that the target took on held-out prompts; None if its card has none."""
    said: Any = record
    for name in ("card", "validation", "engine", "overall", "acceptance"):
        said = said.get(name) if isinstance(said, Mapping) else None
    first = said[0] if isinstance(said, list) and said else None
    return float(first) if isinstance(first, int | float) else None


def chosen(selects: Sequence[str], kinds: Sequence[str]) -> tuple[str, ...]:
    """The kinds that a fixed choice names.   "fixed:feature:3" -> feature"""
    return tuple(kind for kind in kinds if any(re.fullmatch(rf"fixed:{kind}(:\d+)?", select) for select in selects))


class Shelf:
    """The artifacts of one target. Its fingerprint is computed when something is looked for by it."""

    def __init__(
        self, config: ModelConfig, params: Params, tokenizer: Tokenizer, *, dtype: DTypeLike, mesh: Mesh | None
    ):
        self.config, self.params, self.tokenizer, self.dtype, self.mesh = config, params, tokenizer, dtype, mesh

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of the target's weights."""
        return fingerprint(self.config, self.params)

    def find(self, kind: str) -> Path | None:
        """The folder of the artifact of this target; None where there is none."""
        for folder in shelved(kind):
            record = _record(folder / RECORD)
            if kind == TABLE and record.get("vocabulary") == vocabulary_digest(self.tokenizer):
                return folder
            if kind != TABLE and self._fits(record) and record.get("target") == self.fingerprint:
                return folder
        return None

    def _fits(self, record: dict[str, Any]) -> bool:
        """Whether the record's sizes are the target's: only then its weights are looked at."""
        body = record["config"].get("body", {})
        sizes = (body.get("hidden_size"), body.get("vocab_size")) if isinstance(body, dict) else ()
        return sizes == (self.config.hidden_size, self.config.vocab_size)

    def first(self, kinds: Sequence[str]) -> tuple[str, ...]:
        """The first of the kinds that was made for this target, if any."""
        return next(((kind,) for kind in kinds if self.find(kind) is not None), ())

    def best(self, kinds: Sequence[str]) -> tuple[str, ...]:
        """The first of the kinds that was made for this target and pays by its card, if any."""
        found = ((kind, self.find(kind)) for kind in kinds)
        return next(((kind,) for kind, folder in found if folder is not None and pays(_record(folder / RECORD))), ())

    def usual(self, select: str) -> tuple[str, ...]:
        """The drafts where none are named (`jaxspec.load`)."""
        weighed = ("suffix", *self.first((TABLE,)), *self.first(PREFERRED)) if weighs(select) else self.best(PREFERRED)
        return tuple(dict.fromkeys(("lookup", *weighed, *chosen([select], PREFERRED))))

    def prior(self, names: Sequence[str]) -> Path | None:
        """The folder of what was learnt beforehand of this target's drafts by sources of these names; None for none."""
        for file in _files(PRIOR, TRAINED):
            record = _record(file)
            known = record.get("kind") == PRIOR and record.get("features") == [VERSION, WIDTH]
            known = known and bool({*names} & {*record.get("names", ())} - {"none"})
            fits = record.get("sizes") == [self.config.hidden_size, self.config.vocab_size]
            if known and fits and record.get("target") == self.fingerprint:
                return file.parent
        return None

    def take(self, draft: str, artifact: Artifact | None = None) -> Made:
        """What a name stands for, in memory, with what it shares with the target.

        Args:
            artifact: from `opened`.

        Raises:
            ValueError: no artifact of this target, or one of another.
        """
        asked = wanted(draft)
        assert asked is not None
        folder = asked.folder or self.find(asked.kind)
        if folder is None:
            raise missing(asked.kind)
        if asked.kind == TABLE:
            return Made(None, self._placed(load_ngram(folder, self.tokenizer)))
        artifact = artifact or open_draft(folder)
        params = attach(artifact, self.config, self.params, self.fingerprint, dtype=self.dtype)
        config = artifact.config
        if config.kind == "lm" and self.mesh is None and not config.body.fused:
            body, params = fuse(config.body, params)
            config = dataclasses.replace(config, body=body)
        return Made(config, self._placed(params), accepts(_record(folder / RECORD)))

    def _placed(self, params: PyTree) -> PyTree:
        return params if self.mesh is None else jax.device_put(params, replicated(params, self.mesh))


def few_heads(made: Mapping[str, Made], lookahead: int) -> list[str]:
    """What a user should know of Medusa drafts: those with fewer heads than drafts were asked for."""
    heads = {d: each.config.heads for d, each in made.items() if each.config and each.config.kind == "medusa"}
    return [
        f"{draft} has {count} heads, so it drafts {count} tokens a round at the most, not {lookahead}"
        for draft, count in heads.items()
        if count < lookahead
    ]


def model_for(model: LanguageModel, length: int) -> LanguageModel:
    """The model for rows of `length` tokens: a longrope model turns by other frequencies beyond its trained context.

    All rows of a call turn alike; other scalings do not depend on the length here (`jaxspec.models.rope`).
    """
    longrope = model.config.rope_scaling.kind == "longrope"
    return language_model(for_length(model.config, length)) if longrope else model


def config_for(config: DraftConfig, length: int) -> DraftConfig:
    """A trained draft for rows of `length` tokens; only longrope ones differ (`model_for`)."""
    longrope = config.body.rope_scaling.kind == "longrope"
    return dataclasses.replace(config, body=for_length(config.body, length)) if longrope else config
