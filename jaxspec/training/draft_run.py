"""From a corpus in the target's voice to a trained draft on disk: what `scripts/train_draft.py` does."""

import dataclasses
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.checkpoint import attach, fingerprint, open_draft, save_draft
from jaxspec.checkpoint.artifact import IDS, shared
from jaxspec.models import unfuse
from jaxspec.models.heads import DraftConfig
from jaxspec.pipeline import DTYPES, Loaded, load_model
from jaxspec.sharding import make_mesh
from jaxspec.training.draft_data import Sampler, coverage, frequent_tokens, split_parts
from jaxspec.training.draft_loss import draft_loss
from jaxspec.training.draft_start import draft_body, start
from jaxspec.training.fit import Recipe
from jaxspec.training.progress import bar
from jaxspec.training.run import Schedule, train
from jaxspec.training.teacher import Teacher, build_teacher, open_teacher
from jaxspec.typing import Params

HELD = 32
"""Documents of the last part that are held out of training; a quarter of it where it has fewer than four times that."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The command line of `scripts/train_draft.py`, by its names."""

    kind: str
    corpus: str
    out: str
    work: str | None = None
    teacher: str | None = None
    target: str = "smollm2-135m-instruct"
    init_from: str | None = None
    steps: int = 2000
    rate: float = 1e-3
    rows: int = 16
    width: int = 128
    accumulate: int = 1
    loss: str = "kl"
    loss_temperature: float = 1.0
    tokens_share: float = 0.0
    vocab: int = 8192
    layers: list[int] | None = None
    exit_layer: int | None = None
    rank: int = 128
    heads: int = 4
    depths: int = 3
    taps: list[int] | None = None
    top: int = 24
    validate: str | None = None
    validate_every: int = 0
    per_category: int = 2
    save_every: int = 200
    dtype: str = "float32"
    mesh: str | None = None
    seed: int = 0
    overwrite: bool = False


LAYERS = {"lm": 3, "feature": 1}
"""Own layers of a draft where none are given."""


def default_taps(layers: int) -> tuple[int, int, int]:
    """A low, a middle and a high layer: 2, two fifths, four fifths.   30 -> 2 12 24"""
    low, middle, high = min(2, layers), round(layers * 0.4), round(layers * 0.8)
    return tuple(sorted({max(1, low), max(1, middle), max(1, high)}))  # type: ignore[return-value]


def kept_taps(layers: int) -> tuple[int, ...]:
    """What a teacher keeps so that every kind of draft can be trained from it."""
    return tuple(sorted({*default_taps(layers), layers}))


def train_draft(options: Options) -> None:
    """Corpus to teacher, teacher to draft, draft to `options.out`.

    Raises:
        ValueError: bad input, before anything is compiled; a `TrainingError` where training cannot go on.
    """
    check_out(options)
    mesh = None if options.mesh is None else make_mesh(options.mesh)
    target = load_model(options.target)
    config, params = unfuse(target.model.config, target.params)
    print_ = fingerprint(config, params)
    teacher = teach(options, target, print_)
    parts, held = split_parts(teacher.parts, min(HELD, (len(teacher.parts[-1].starts) - 1) // 4))
    draft, first = begin(options, target, teacher, params, print_)
    context = shared(draft, {IDS: jnp.asarray(first[IDS])}, params) | {"temperature": jnp.float32(1)}
    taps = needed_taps(draft)
    sampler = Sampler(parts, rows=options.rows, width=options.width, taps=taps, seed=options.seed)
    recipe = Recipe(options.steps, rate=options.rate, weight_decay=0.01, betas=(0.9, 0.95))
    schedule = Schedule(recipe, options.accumulate, options.save_every, validate_every=options.validate_every)
    loss = draft_loss(
        draft,
        divergence=options.loss,
        temperature=options.loss_temperature,
        tokens_share=options.tokens_share,
        depths=options.depths,
    )
    check = _checker(options, draft, first[IDS], target, held, loss, context, taps)
    work, began = Path(options.work or f"{options.out}-run"), time.perf_counter()
    trainable = {name: jnp.asarray(leaf, jnp.float32) for name, leaf in first.items() if name != IDS}
    a_step = options.rows * options.width
    with bar(f"{options.kind}") as told:
        trained = train(
            loss,
            trainable,
            sampler.batch,
            schedule,
            work,
            context=context,
            settings={k: v for k, v in dataclasses.asdict(options).items() if k not in ("out", "work", "overwrite")}
            | {"target_weights": print_, "documents": len(sampler.documents)},
            dtype=DTYPES[options.dtype],
            mesh=mesh,
            told=lambda step, steps, line: told(step, steps, step * a_step, _note(line)),
            validate=check,
        )
    card = {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "steps": options.steps,
        "tokens": options.steps * options.accumulate * a_step,
        "corpus_tokens": teacher.tokens,
        "minutes": round((time.perf_counter() - began) / 60, 1),
        "coverage": round(coverage(held, np.asarray(first[IDS])), 4),
    }
    stored = {name: np.asarray(leaf) for name, leaf in trained.items()} | {IDS: np.asarray(first[IDS])}
    save_draft(options.out, draft, stored, target=print_, card=card, overwrite=options.overwrite)


def check_out(options: Options) -> None:
    """Refuse what would fail hours later."""
    out = Path(options.out)
    if out.exists() and any(out.iterdir()) and not options.overwrite:
        raise ValueError(f"{out} exists already; give --overwrite to replace the draft in it, or another folder")
    if options.dtype not in DTYPES:
        raise ValueError(f"dtype {options.dtype!r} is unknown; choose {', '.join(DTYPES)}")


def teach(options: Options, target: Loaded, print_: str) -> Teacher:
    """The target's view of the corpus: what exists of it is kept."""
    layers = target.model.config.num_layers
    shards = sorted(Path(options.corpus).glob("shard-*.npz"))
    if not shards:
        raise ValueError(f"{options.corpus} holds no shards; make them with scripts/generate_corpus.py")
    wanted = set(kept_taps(layers)) | set(options.taps or ())
    if options.exit_layer:
        wanted.add(options.exit_layer)
    folder = Path(options.teacher or f"{options.corpus.rstrip('/')}-teacher")
    vocab = min(len(target.tokenizer.vocabulary()), target.model.config.vocab_size)
    with bar("teacher") as told:
        build_teacher(
            target.model,
            target.params,
            shards,
            folder,
            target=print_,
            taps=tuple(sorted(wanted)),
            top=options.top,
            vocab_size=vocab,
            told=told,
        )
    return open_teacher(folder)


def needed_taps(draft: DraftConfig) -> tuple[int, ...]:
    """Layers whose residual streams a draft's training reads."""
    return {"exit": (draft.layers,), "lm": ()}.get(draft.kind, draft.taps)


def begin(
    options: Options, target: Loaded, teacher: Teacher, params: Params, print_: str
) -> tuple[DraftConfig, dict[str, Any]]:
    """The draft's config, and its own parameters with its vocabulary, fresh or from another draft."""
    if options.init_from is not None:
        artifact = open_draft(options.init_from)
        attached = attach(artifact, target.model.config, target.params, print_)
        return artifact.config, {name: attached[name] for name in artifact.tensors}
    layers, kind = target.model.config.num_layers, options.kind
    chosen = options.layers or _spread(layers, LAYERS.get(kind, 1), last=kind == "feature")
    ids = frequent_tokens(teacher.parts, options.vocab, always=tuple(target.tokenizer.eos_ids))
    body = draft_body(target.model.config, len(chosen))
    taps = {"feature": tuple(sorted(options.taps or default_taps(layers))), "medusa": (layers,)}.get(kind, ())
    depth = options.exit_layer or round(layers * 0.4)
    sizes = {"layers": depth if kind == "exit" else len(chosen), "heads": options.heads, "rank": options.rank}
    draft = DraftConfig(kind, body, len(ids), taps=taps, **sizes)
    fresh = start(draft, params, seed=options.seed, from_layers=chosen)
    return draft, dict(fresh) | {IDS: ids}


def _spread(layers: int, count: int, *, last: bool) -> list[int]:
    """Layers of the target to start from: its last, or its first and last ones.   30, 3 -> 0 1 29"""
    return [layers - 1] if last else [*range(count - 1), layers - 1]


def _note(line: dict[str, Any]) -> str:
    agreed = " ".join(f"{value:.3f}" for value in line.get("agreement", []))
    return f"loss {line['loss']:.3f} agreement {agreed}"


def _checker(
    options: Options,
    draft: DraftConfig,
    ids: np.ndarray,
    target: Loaded,
    held: Any,
    loss: Any,
    context: Params,
    taps: tuple[int, ...],
) -> Any:
    """Metrics on what training does not see: held-out documents; and the engine on held-out prompts, if given."""
    sampler = Sampler(held, rows=options.rows, width=options.width, taps=taps, seed=1)
    batches = [sampler.batch(step) for step in range(max(1, HELD // options.rows))]
    measure = jax.jit(loss)

    def check(step: int, params: Params) -> dict[str, Any]:
        del step
        seen = [jax.device_get(measure(params, jax.tree.map(jnp.asarray, batch), context)) for batch in batches]
        shown = {
            name: np.mean([getattr(m, name) for _, m in seen], axis=0).round(4).tolist() for name in seen[0][1]._fields
        }
        return {"loss": round(float(np.mean([v for v, _ in seen])), 4)} | shown

    return check
