"""Convert a checkpoint: a Hugging Face folder, hub id or GGUF file to ours, or any of them to a Hugging Face folder.

python scripts/convert_checkpoint.py smollm2-135m-instruct smollm2/
python scripts/convert_checkpoint.py smollm2/ smollm2-hf/ --to hf
"""

import argparse
import re
import sys

from jaxspec.checkpoint import convert
from jaxspec.checkpoint.convert import FORMATS, MAX_SHARD_BYTES, progress_bar

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


def size(text: str) -> int:
    """Bytes of "5GB", "200MB" or a plain number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)B?", text.strip().upper())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 5GB, 200MB or a number of bytes")
    try:
        return int(float(match[1]) * UNITS[match[2]])
    except OverflowError:
        raise argparse.ArgumentTypeError(
            "that size is beyond all disks; write 5GB, 200MB or a number of bytes"
        ) from None


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line, or the given words."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="SRC", help="folder, .gguf file, hub id, or smollm2-135m-instruct")
    parser.add_argument("destination", metavar="DST", help="folder to make")
    parser.add_argument("--to", choices=FORMATS, default="orbax", help="what to write (default: orbax)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="cast every tensor")
    parser.add_argument(
        "--max-shard-size", type=size, default=MAX_SHARD_BYTES, help="of a safetensors file (default: 5GB)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace DST if it is a checkpoint")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Convert as the command line says; the exit status."""
    args = parse(arguments)
    try:
        with progress_bar(f"Converting to {args.destination}") as progress:
            convert(
                args.source,
                args.destination,
                to=args.to,
                dtype=args.dtype,
                max_shard_bytes=args.max_shard_size,
                overwrite=args.overwrite,
                progress=progress,
            )
    except (ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; nothing was left\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
