"""What a training run works on: the target, its view of a corpus, and the draft as it begins."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from jaxspec.checkpoint import Artifact, attach, fingerprint, open_draft
from jaxspec.checkpoint.artifact import IDS, shared
from jaxspec.models import unfuse
from jaxspec.models.heads import DraftConfig, default_taps, draft_body
from jaxspec.pipeline import Loaded, load_model
from jaxspec.training.corpus import SETTINGS
from jaxspec.training.draft_data import frequent_tokens, split_parts
from jaxspec.training.draft_start import start
from jaxspec.training.live import See, as_kept, for_context, live, text_parts
from jaxspec.training.options import Options
from jaxspec.training.progress import bar
from jaxspec.training.teacher import Part, build_teacher, open_teacher
from jaxspec.training.text_corpus import text_corpus
from jaxspec.typing import Params

HELD = 32
"""Documents at the end of the corpus that are held out of training; a quarter of it where it has fewer than 128."""

LAYERS = {"lm": 3, "feature": 1}
"""Own layers of a draft where none are given."""


@dataclasses.dataclass(frozen=True)
class Task:
    """Everything that a run reads."""

    target: Loaded
    weights: str  # the target's fingerprint
    corpus: Mapping[str, Any]  # how it was made
    parts: tuple[Part, ...]  # to train on
    held: tuple[Part, ...]  # not to
    kept: tuple[int, ...]  # layers whose residual streams the batches bring
    see: See
    draft: DraftConfig
    first: Params  # the draft's own parameters as training begins, with its vocabulary
    context: Params

    @property
    def tokens(self) -> int:
        """Tokens of the corpus."""
        return sum(len(part.tokens) for part in (*self.parts, *self.held))


def prepare(options: Options) -> Task:
    """Load the target, let it read the corpus unless it did before, and make the draft.

    Raises:
        ValueError: bad input.
    """
    target = load_model(options.target, dtype=options.dtype)
    config, params = unfuse(target.model.config, target.params)
    _check_layers(options, config.num_layers)
    weights = fingerprint(config, params)
    artifact = _begun(options, target, weights)
    shards, corpus = _shards(options, target, weights)
    vocab = min(len(target.tokenizer.vocabulary()), config.vocab_size)
    wanted = _taps(options, config.num_layers, artifact)
    if options.live:
        every = text_parts(shards, vocab_size=vocab)
    else:
        every = _teach(options, target, weights, shards, corpus, wanted, vocab)
    documents = sum(len(part.starts) - 1 for part in every)
    parts, held = split_parts(every, min(HELD, documents // 4))
    draft, first = _first(options, target, every, params) if artifact is None else artifact
    context = shared(draft, first, params) | {"temperature": jnp.float32(1)}
    taps, see = needed_taps(draft), as_kept
    if options.live:
        context |= for_context(target.params)
        taps, see = (), live(target.model, taps=taps, vocab_size=vocab)
    return Task(target, weights, corpus, parts, held, taps, see, draft, first, context)


def kept_taps(layers: int) -> tuple[int, ...]:
    """What a teacher keeps so that every kind of draft can be trained from it."""
    return tuple(sorted({*default_taps(layers), layers}))


def needed_taps(draft: DraftConfig) -> tuple[int, ...]:
    """Layers whose residual streams a draft's training reads."""
    return {"exit": (draft.layers,), "lm": ()}.get(draft.kind, draft.taps)


def _check_layers(options: Options, layers: int) -> None:
    last = {"taps": layers, "layers": layers - 1, "exit_layer": layers - 1}
    least = {"taps": 1, "layers": 0, "exit_layer": 1}
    for name, most in last.items():
        given = getattr(options, name)
        for layer in given if isinstance(given, list) else [] if given is None else [given]:
            if not least[name] <= layer <= most:
                raise ValueError(f"{name} names {layer}; the target has {layers} layers, give {least[name]} to {most}")


def _begun(options: Options, target: Loaded, weights: str) -> tuple[DraftConfig, Params] | None:
    """The draft that training goes on from."""
    if options.init_from is None:
        return None
    artifact: Artifact = open_draft(options.init_from)
    if artifact.config.kind != options.kind:
        raise ValueError(
            f"{artifact.path} is a draft of kind {artifact.config.kind}, asked for is {options.kind}; give --kind "
            f"{artifact.config.kind}, or another draft to start from"
        )
    attached = attach(artifact, target.model.config, target.params, weights)
    return artifact.config, {name: attached[name] for name in artifact.tensors}


def _shards(options: Options, target: Loaded, weights: str) -> tuple[list[Path], dict[str, Any]]:
    """The corpus's files, made of the user's text where that is given; and its settings."""
    folder = Path(options.corpus or f"{options.work or options.out + '-run'}/corpus")
    if options.text is not None:
        text_corpus(options.text, target.tokenizer, folder, target=weights)
    shards = sorted(folder.glob("shard-*.npz"))
    if not shards:
        raise ValueError(f"{folder} holds no shards; make them with scripts/generate_corpus.py")
    file = folder / SETTINGS
    try:
        return shards, json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except ValueError as error:
        raise ValueError(f"{file} is broken ({error}); generate the corpus again") from None


def _taps(options: Options, layers: int, begun: tuple[DraftConfig, Any] | None) -> tuple[int, ...]:
    """Layers whose residual streams the target's view of the corpus keeps."""
    wanted = {*kept_taps(layers), *(options.taps or ()), *([options.exit_layer] if options.exit_layer else ())}
    return tuple(sorted(wanted | {*(needed_taps(begun[0]) if begun else ())}))


def _teach(
    options: Options,
    target: Loaded,
    weights: str,
    shards: list[Path],
    corpus: Mapping[str, Any],
    taps: tuple[int, ...],
    vocab: int,
) -> tuple[Part, ...]:
    """The target's view of the corpus: what exists of it is kept."""
    folder = Path(options.teacher or f"{shards[0].parent}-teacher")
    digest = hashlib.sha256(json.dumps(corpus, sort_keys=True).encode()).hexdigest() if corpus else None
    sizes = {
        "taps": taps,
        "top": min(options.top, vocab),
        "vocab_size": vocab,
        "corpus": digest,
        "dtype": options.dtype,
    }
    with bar("teacher") as told:
        build_teacher(target.model, target.params, shards, folder, target=weights, **sizes, told=told)
    return open_teacher(folder)


def _first(options: Options, target: Loaded, parts: tuple[Part, ...], params: Params) -> tuple[DraftConfig, Params]:
    """A fresh draft's config, and its own parameters with its vocabulary."""
    layers, kind = target.model.config.num_layers, options.kind
    chosen = options.layers or _spread(layers, LAYERS.get(kind, 1), last=kind == "feature")
    ids = frequent_tokens(parts, options.vocab, always=tuple(target.tokenizer.eos_ids))
    body = draft_body(target.model.config, len(chosen))
    taps = {"feature": tuple(sorted(options.taps or default_taps(layers))), "medusa": (layers,)}.get(kind, ())
    depth = options.exit_layer or round(layers * 0.4)
    sizes = {"layers": depth if kind == "exit" else len(chosen), "heads": options.heads, "rank": options.rank}
    draft = DraftConfig(kind, body, len(ids), taps=taps, **sizes)
    fresh = start(draft, params, seed=options.seed, from_layers=chosen)
    return draft, dict(fresh) | {IDS: jnp.asarray(ids)}


def _spread(layers: int, count: int, *, last: bool) -> list[int]:
    """Layers of the target to start from: its last, or its first and last ones.   30, 3 -> 0 1 29"""
    return [layers - 1] if last else [*range(min(count, layers) - 1), layers - 1]
