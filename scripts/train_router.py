"""Train a router, or a prior for the selector goodput, on records of scripts/replay.py.

python scripts/replay.py --record prompts.jsonl --draft lookup --draft suffix --draft feature --out records
python scripts/train_router.py --record records --out my-router              # then --select router:my-router
python scripts/train_router.py --record records --kind prior --out my-prior  # then --select goodput:my-prior

A prior in checkpoints/NAME/prior (or $JAXSPEC_ARTIFACTS/NAME/prior) whose --target was given is what goodput begins
with on that target, unasked.
"""

import argparse
import dataclasses
import os
import sys

from rich.console import Console
from rich.table import Table

from jaxspec.console import attempt, command_of


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--record", nargs="+", required=True, metavar="FOLDER", help="of records, or .jsonl of traces")
    p.add_argument("--out", required=True, metavar="DIR", help="gets the weights and a card")
    p.add_argument("--kind", default="mlp", help="mlp, used alone, or prior, of goodput (default: %(default)s)")
    p.add_argument("--target", metavar="NAME", help="that the records are of: folder, file, hub id")
    p.add_argument("--steps", type=int, default=2000, help="(default: %(default)s)")
    p.add_argument("--hold-out", type=float, default=0.2, metavar="SHARE", help="of the texts (default: %(default)s)")
    p.add_argument("--rate", type=float, default=3e-3, help="of learning (default: %(default)s)")
    p.add_argument(
        "--draft-step", type=float, default=0.1, metavar="C", help="plain steps of a draft (default: %(default)s)"
    )
    p.add_argument("--strength", type=float, default=30.0, metavar="N", help="rounds a prior counts for (default: 30)")
    p.add_argument("--data-note", metavar="TEXT", help="the data and its licences, for the card")
    p.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    p.add_argument("--overwrite", action="store_true", help="replace DIR if it is a router")
    return p.parse_args(arguments)


def run(args: argparse.Namespace, command: str) -> None:
    """Train, write, and say how good it is."""
    from jaxspec.bench.compare import read
    from jaxspec.checkpoint import fingerprint, open_checkpoint
    from jaxspec.models import ModelConfig
    from jaxspec.select.trained import Target
    from jaxspec.training.progress import bar
    from jaxspec.training.router import Options, make_router

    options = Options(**{field.name: getattr(args, field.name) for field in dataclasses.fields(Options)})
    texts = [text for folder in args.record for text in read(folder)]
    target = None
    if args.target is not None:
        checkpoint = open_checkpoint(args.target)
        config = ModelConfig.from_hf(checkpoint.config)
        target = Target(fingerprint(config, checkpoint.tensors), config.hidden_size, config.vocab_size)
    with bar("router") as told:
        own = {"data": args.record, "command": command, "target": target, "note": args.data_note}
        trained = make_router(texts, args.out, options, told=told, overwrite=args.overwrite, **own)
    losses = trained.report["log_loss"]
    table = Table(title=f"log-loss on {trained.report['held_out']} of {trained.report['texts']} texts, nats")
    for name in ("", *losses["trained"]):
        table.add_column(name, overflow="fold")
    for kind, by in losses.items():
        table.add_row(kind, *("" if value is None else f"{value:.4f}" for value in by.values()))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def main(arguments: list[str] | None = None) -> int:
    """Train as the command line says; the exit status."""
    args = parse(arguments)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    command = command_of("train_router.py", arguments)
    return attempt(lambda: run(args, command), interrupted="nothing was left")


if __name__ == "__main__":
    sys.exit(main())
