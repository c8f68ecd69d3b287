"""Convert a published draft to ours: Medusa heads, an EAGLE or an EAGLE-3 layer.

python scripts/convert_draft.py EAGLE3-LLaMA3.1-Instruct-8B/ checkpoints/llama-8b/feature --target llama-8b/
"""

import argparse
import sys

from jaxspec.checkpoint.third_party import KINDS, convert_draft
from jaxspec.console import attempt


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line, or the given words."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("source", metavar="SRC", help="folder with config.json and safetensors, or a hub id")
    p.add_argument("destination", metavar="DST", help="folder to make")
    p.add_argument("--target", metavar="NAME", help="the model it is for, a folder, file or hub id; ties it to that")
    p.add_argument("--kind", choices=KINDS, help="what SRC is (default: told from its tensors)")
    p.add_argument(
        "--taps",
        type=int,
        nargs="+",
        metavar="K",
        help="layers of the target after which an EAGLE draft reads (default: as its config says, or EAGLE's own)",
    )
    p.add_argument("--overwrite", action="store_true", help="replace a draft that lies at DST")
    return p.parse_args(arguments)


def run(args: argparse.Namespace) -> None:
    """Convert, and say what it is."""
    options = {name: getattr(args, name) for name in ("target", "kind", "taps", "overwrite")}
    made = convert_draft(args.source, args.destination, **options)
    taps = f", reads after layers {' '.join(map(str, made.taps))}" if made.taps else ""
    sys.stderr.write(f"{args.destination}: {made.kind}, {made.vocab} of {made.body.vocab_size} tokens{taps}\n")


def main(arguments: list[str] | None = None) -> int:
    """Convert as the command line says; the exit status."""
    args = parse(arguments)
    return attempt(lambda: run(args), interrupted="nothing was left")


if __name__ == "__main__":
    sys.exit(main())
