"""The options of `scripts/train_draft.py`: names, defaults, what they mean."""

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxspec.models.heads import KINDS


def _option(default: Any, help: str, **how: Any) -> Any:
    return dataclasses.field(default=default, metadata={"help": help} | how)


@dataclasses.dataclass(frozen=True)
class Options:
    """What to train, on what, how long."""

    kind: str = _option("", "of draft", choices=KINDS, metavar="KIND")
    corpus: str = _option("", "shards of scripts/generate_corpus.py", metavar="DIR")
    text: Sequence[str] | None = _option(
        None, "your own text in place of a corpus: .txt or .jsonl", nargs="+", metavar="FILE"
    )
    out: str = _option("", "gets the trained draft", metavar="DIR")
    calibrate: str | None = _option(None, "train nothing: fit this draft's temperature anew", metavar="DIR")
    work: str | None = _option(None, "checkpoints, metrics, plot (default: OUT with -run after it)", metavar="DIR")
    teacher: str | None = _option(None, "the target's laws (default: CORPUS with -teacher after it)", metavar="DIR")
    live: bool = _option(False, "compute the target's laws in the training step instead; nothing is kept on disk")
    target: str = _option("smollm2-135m-instruct", "folder, file, hub id", metavar="NAME")
    init_from: str | None = _option(None, "a draft to start from (default: the target's layers)", metavar="DIR")
    steps: int = _option(2000, "of the optimiser")
    rate: float = _option(1e-3, "peak learning rate")
    rows: int = _option(16, "stretches of text a step")
    width: int = _option(128, "tokens of a stretch")
    accumulate: int = _option(1, "batches a step")
    loss: str = _option("kl", "kl, reverse-kl, js, tv", metavar="NAME")
    loss_temperature: float = _option(1.0, "of both laws")
    tokens_share: float = _option(0.0, "of cross-entropy in the loss")
    vocab: int = _option(8192, "tokens the draft can say")
    layers: Sequence[int] | None = _option(
        None, "lm, feature: the target's layers it starts from", nargs="+", metavar="L"
    )
    exit_layer: int | None = _option(None, "exit: layers of the target it reads after", metavar="K")
    rank: int = _option(128, "exit: of the adapter")
    heads: int = _option(4, "medusa: depths")
    depths: int = _option(3, "feature: own steps it is trained on")
    taps: Sequence[int] | None = _option(None, "feature: layers of the target it reads after", nargs="+", metavar="K")
    top: int = _option(24, "likeliest tokens kept of a law")
    validate: str | None = _option(None, "held-out prompts, decoded with the draft by the engine", metavar="FILE")
    validate_every: int = _option(0, "steps (default: at the end alone)", metavar="N")
    per_category: int = _option(2, "held-out prompts of each")
    validate_tokens: int = _option(64, "of an answer to a held-out prompt")
    validate_temperature: float = _option(0.0, "of the answers to held-out prompts; 0 is greedy")
    lookahead: int = _option(4, "drafts a round while validating")
    save_every: int = _option(200, "steps", metavar="N")
    dtype: str = _option("float32", "of the target and of the loss's arithmetic; weights and optimiser are float32")
    mesh: str | None = _option(None, "data=8: rows over these devices (default: one)")
    data_note: str | None = _option(None, "the data and its licences, for the card", metavar="TEXT")
    seed: int = _option(0, "of batches and fresh weights")
    overwrite: bool = _option(False, "replace a draft that lies at OUT")


FREE = (
    "rate",
    "save_every",
    "target",
    "validate",
    "validate_every",
    "validate_tokens",
    "validate_temperature",
    "per_category",
    "lookahead",
    "data_note",
)
"""What a run may go on with other values of. All but the rate change no weight."""

APART = ("out", "work", "overwrite", "calibrate")
"""What is no setting of a run."""


def settings_of(options: Options) -> dict[str, Any]:
    """What a run's folder is begun with."""
    each = dataclasses.asdict(options)
    return {
        name: value for name, value in each.items() if name not in APART and value is not None and value is not False
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Every field of `Options` as an option of the command line."""
    for field in dataclasses.fields(Options):
        how = dict(field.metadata)
        if field.default not in (None, False, ""):
            how["help"] += " (default: %(default)s)"
        flag = "--" + field.name.replace("_", "-")
        if field.default is False:
            parser.add_argument(flag, action="store_true", **how)
        else:
            kind = int if "int" in str(field.type) else float if "float" in str(field.type) else str
            parser.add_argument(flag, type=kind, default=field.default, **how)
