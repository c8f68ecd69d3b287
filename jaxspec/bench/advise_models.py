"""Who is asked about: models and draft sources by name, config or size, without their weights."""

import dataclasses
import functools
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxspec import sources
from jaxspec.bench import compile_check, compile_drafts
from jaxspec.checkpoint import hub, open_checkpoint, open_draft
from jaxspec.checkpoint.artifact import check_fits
from jaxspec.checkpoint.config_file import CONFIG, is_ours
from jaxspec.checkpoint.config_file import read_config as read_fields
from jaxspec.drafts.ngram import read_record
from jaxspec.models import ModelConfig, parameter_shapes
from jaxspec.models.heads import KINDS, DraftConfig
from jaxspec.text import compare_vocabularies, from_folder, from_gguf

UNITS = {"m": 10**6, "b": 10**9, "t": 10**12}
FREE = ("lookup", "suffix", "ngram", "jacobi")

Shapes = dict[str, jax.ShapeDtypeStruct]


@dataclasses.dataclass(frozen=True)
class Model:
    """A model of which at least the size is known."""

    name: str
    count: float  # parameters
    config: ModelConfig | None = None  # None: only the size is known
    tokenizer: Path | Mapping[str, Any] | None = None  # what its tokenizer is read from; None where there is none
    path: Path | None = None


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A draft source that is asked about."""

    name: str  # as it was asked for
    source: str  # as `scripts/generate.py --draft` takes it, and as telemetry names it
    kind: str  # model | lm | feature | medusa | exit | a kind of `FREE`
    model: Model | None = None  # of kind model
    trained: DraftConfig | None = None  # of a trained draft, or of one as it would be trained
    layers: int = 0  # exit: of the target that draft
    card: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of a trained draft
    note: str = ""  # what a user should know of it, a sentence

    @property
    def most(self) -> int | None:
        """Drafts a round at the most; None where nothing limits them."""
        return self.trained.heads if self.trained is not None and self.kind == "medusa" else None


def parameter_count(text: str) -> float | None:
    """Parameters of a size such as "8b", "0.5B" or "135m"; None where the text is none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([mbt])", text.strip().lower())
    count = float(found[1]) * UNITS[found[2]] if found else None
    if count == 0:
        raise ValueError(f"a model of {text} has no parameters; give a size such as 8b or 135m")
    return count


def find_model(name: str) -> Model:
    """A model by size, preset, local folder or file, name or hub id; its weights are not read, nor fetched from a hub.

    Raises:
        ValueError: nothing of that name, or a checkpoint that is broken.
    """
    count = parameter_count(name)
    if count is not None:
        return Model(name, count)
    if name in compile_check.PRESETS:
        return _of_config(name, compile_check.read_config(name), None, None)
    path = Path(name).expanduser()
    if path.suffix == ".json":
        return _of_config(name, compile_check.read_config(str(path)), path.parent, path)
    try:
        path = hub.resolve(name, weights=False)
    except ValueError as error:
        presets = ", ".join(compile_check.PRESETS)
        raise ValueError(f"{error}; or a size such as 8b, or one of {presets}") from None
    bare = path.is_dir() and not is_ours(path) and not [*path.glob("*.safetensors"), *path.glob("*.gguf")]
    if bare and (path / CONFIG).is_file():
        return _of_config(name, ModelConfig.from_hf(read_fields(path)), path, path)
    checkpoint = open_checkpoint(path)
    return _of_config(name, ModelConfig.from_hf(checkpoint.config), checkpoint.tokenizer, path)


def _of_config(name: str, config: ModelConfig, tokenizer: Path | Mapping[str, Any] | None, path: Path | None) -> Model:
    config = dataclasses.replace(config, fused=False)
    count = sum(math.prod(shape) for shape in _sizes(config).values())
    return Model(name, float(count), config, tokenizer, path)


def shapes_of(config: ModelConfig, dtype: DTypeLike) -> Shapes:
    """As `parameter_shapes`, of one layer for all, since all are alike: for 80 layers that takes seconds."""
    return {name: jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for name, shape in _sizes(config).items()}


@functools.lru_cache(maxsize=64)
def _sizes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    one = parameter_shapes(dataclasses.replace(config, num_layers=1, windows=config.windows[:1]))
    first = "layers.0."
    found = {name: leaf.shape for name, leaf in one.items() if not name.startswith(first)}
    for layer in range(config.num_layers):
        found |= {
            name.replace(first, f"layers.{layer}."): leaf.shape for name, leaf in one.items() if name.startswith(first)
        }
    return found


def find_draft(name: str, target: Model) -> Candidate:
    """A draft source by any name that `scripts/generate.py` takes, or as a bare model, size or folder.

    Raises:
        ValueError: nothing of that name, or a source that this target cannot have.
    """
    kind, colon, rest = name.partition(":")
    if kind in FREE and (not colon or kind in ("jacobi", "ngram")):
        return _free(name, kind, rest)
    if kind == "exit" and rest.isdecimal():
        return _exit(name, int(rest), _needed(name, target))
    record = Path(name) / sources.RECORD
    if record.is_file():
        stored = json.loads(record.read_text(encoding="utf-8"))
        said = stored.get("kind") or stored.get("config", {}).get("kind")
        return find_draft(f"{said}:{name}", target) if said in (*KINDS, "ngram") else _model(name, name)
    asked = sources.wanted(name)
    if asked is not None and kind in KINDS:
        return _trained(name, kind, asked.folder, _needed(name, target))
    return _model(name, rest if kind == "lm" and colon else name)


def _free(name: str, kind: str, rest: str) -> Candidate:
    sources.check_draft(name)
    card = read_record(rest) if kind == "ngram" and rest else {}
    return Candidate(name, name, kind, card=card)


def _model(name: str, wanted: str) -> Candidate:
    model = find_model(wanted)
    return Candidate(name, f"lm:{wanted}", "model", model=model)


def _needed(name: str, target: Model) -> ModelConfig:
    if target.config is None:
        raise ValueError(
            f"draft {name!r} is made of its target's layers, and of target {target.name!r} only the size is known; "
            "name the target's checkpoint or config.json"
        )
    return target.config


def _exit(name: str, layers: int, target: ModelConfig) -> Candidate:
    if not 1 <= layers < target.num_layers:
        most = target.num_layers - 1
        raise ValueError(
            f"{name} asks for {layers} layers; the target has {target.num_layers}, so give exit:1 to {most}"
        )
    return Candidate(name, name, "exit", layers=layers)


def _trained(name: str, kind: str, folder: Path | None, target: ModelConfig) -> Candidate:
    note = ""
    if folder is None:
        folder = next((each for each in sources.shelved(kind) if _fits(each, target)), None)
        where = "" if folder is None else f"{folder.parent.name}/{folder.name}"
        note = f"{name} is {where}, by the target's sizes; whether it is of its weights is seen on loading"
    if folder is None:
        config = compile_drafts.default(kind, target)
        note = f"there is no {name} of this target yet; its sizes are those of scripts/train_draft.py --kind {kind}"
        return Candidate(name, name, kind, trained=config, layers=_exit_layers(config), note=note)
    artifact = open_draft(folder)
    if artifact.config.kind != kind:
        raise ValueError(f"{name}: {folder} holds a draft of kind {artifact.config.kind}, not {kind}")
    check_fits(artifact.config, target, where=folder)
    config = artifact.config
    return Candidate(name, name, kind, trained=config, layers=_exit_layers(config), card=artifact.card, note=note)


def _exit_layers(config: DraftConfig) -> int:
    return config.layers if config.kind == "exit" else 0


def _fits(folder: Path, target: ModelConfig) -> bool:
    try:
        check_fits(open_draft(folder).config, target, where=folder)
    except ValueError:
        return False
    return True


def vocabulary(target: Model, draft: Candidate) -> dict[str, Any]:
    """Whether a draft's token ids are its target's: {"verdict": own | same | other | unknown, "shared", "text"}."""
    if draft.model is None:
        return {"verdict": "own", "shared": None, "text": "drafts in the target's own ids"}
    sizes = [model.config and model.config.vocab_size for model in (target, draft.model)]
    try:
        known = [_words(model) for model in (target, draft.model)]
    except ValueError as error:
        return {"verdict": "unknown", "shared": None, "text": f"could not be compared: {error}"}
    here, there = known
    if here is not None and there is not None:
        try:
            shared = compare_vocabularies(here, there)
        except ValueError as error:
            return {"verdict": "other", "shared": None, "text": str(error)}
        return {"verdict": "same", "shared": shared, "text": f"{shared} ids mean the same to both"}
    if None in sizes:
        return {"verdict": "unknown", "shared": None, "text": "only a size is known; a draft needs the target's tokens"}
    text = f"{sizes[0]} and {sizes[1]} entries; token by token it is compared where both have a tokenizer"
    return {"verdict": "unknown", "shared": None, "text": text}


def _words(model: Model) -> list[str] | None:
    """Its vocabulary; None where no tokenizer is at hand.

    Raises:
        ValueError: a tokenizer that is broken.
    """
    where = model.tokenizer
    if where is None or (isinstance(where, Path) and not _has_tokenizer(where)):
        return None
    return list((from_gguf(where) if isinstance(where, Mapping) else from_folder(where)).vocabulary())


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json"))
