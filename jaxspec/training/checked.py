"""What would fail hours later is refused at once."""

from pathlib import Path

from jaxspec.checkpoint.artifact import RECORD
from jaxspec.pipeline import DTYPES
from jaxspec.sharding import DATA, make_mesh
from jaxspec.text import read_prompts
from jaxspec.training.draft_loss import check_loss
from jaxspec.training.fit import Recipe
from jaxspec.training.options import Options
from jaxspec.training.run import Schedule

POSITIVE = (
    "rows",
    "accumulate",
    "save_every",
    "steps",
    "depths",
    "top",
    "per_category",
    "validate_tokens",
    "lookahead",
)


def check_options(options: Options) -> None:
    """Refuse options that do not go together, before anything is loaded.

    Raises:
        ValueError: what is missing, out of range or in the way.
    """
    if not options.kind:
        raise ValueError("no kind of draft is given; give --kind lm, medusa, feature or exit")
    if bool(options.corpus) == bool(options.text):
        raise ValueError("give the text to train on: --corpus, or --text with your own, one of them")
    if options.corpus and not list(Path(options.corpus).glob("shard-*.npz")):
        raise ValueError(f"{options.corpus} holds no shards; make them with scripts/generate_corpus.py")
    if options.calibrate is None:
        _check_out(options)
    for name in POSITIVE:
        if getattr(options, name) < 1:
            raise ValueError(f"{name} is {getattr(options, name)}; give 1 or more")
    if options.width < 2 or options.width <= max(options.depths, options.heads):
        raise ValueError(f"width is {options.width}; give more tokens than depths and heads, which a stretch must hold")
    if options.validate_every < 0 or options.validate_temperature < 0:
        raise ValueError("validate_every and validate_temperature are 0 or more; one of them is not")
    check_loss(options.loss, options.loss_temperature, options.tokens_share, options.depths)
    schedule_of(options)
    if options.validate is not None:
        read_prompts(options.validate)
    if options.dtype not in DTYPES:
        raise ValueError(f"dtype {options.dtype!r} is unknown; choose {', '.join(DTYPES)}")
    if options.mesh is not None:
        devices = make_mesh(options.mesh).shape[DATA]
        if options.rows % devices:
            raise ValueError(f"{options.rows} rows cannot be split over {devices} devices; give a multiple of them")


def _check_out(options: Options) -> None:
    out = Path(options.out)
    if not options.out:
        raise ValueError("no place for the draft is given; give --out with a folder")
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not options.overwrite:
        raise ValueError(f"{out} exists already; give --overwrite to replace the draft in it, or another folder")
    if not (out / RECORD).is_file():
        raise ValueError(f"{out} holds no draft, and only those are overwritten; give another folder")


def schedule_of(options: Options) -> Schedule:
    """How long to train, and how often what is done."""
    recipe = Recipe(options.steps, rate=options.rate, weight_decay=0.01, betas=(0.9, 0.95))
    return Schedule(recipe, options.accumulate, options.save_every, validate_every=options.validate_every)
