"""Convert a published draft to ours: Medusa heads, an EAGLE or an EAGLE-3 layer.

python scripts/convert_draft.py EAGLE3-LLaMA3.1-Instruct-8B/ checkpoints/llama-8b/feature --target llama-8b/
"""

import argparse
import sys

from jaxspec.checkpoint.third_party import KINDS, convert_draft
from jaxspec.console import fail


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


def main(arguments: list[str] | None = None) -> int:
    """Convert as the command line says; the exit status."""
    args = parse(arguments)
    try:
        made = convert_draft(
            args.source,
            args.destination,
            target=args.target,
            kind=args.kind,
            taps=args.taps,
            overwrite=args.overwrite,
        )
    except ValueError as error:
        return fail(str(error))
    except OSError as error:
        return fail(str(error), 1)
    except KeyboardInterrupt:
        return fail("interrupted; nothing was left", 130)
    taps = f", reads after layers {' '.join(map(str, made.taps))}" if made.taps else ""
    sys.stderr.write(f"{args.destination}: {made.kind}, {made.vocab} of {made.body.vocab_size} tokens{taps}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
