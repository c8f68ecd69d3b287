"""Build a table of frequent token sequences, which the draft source `ngram` looks up.

python scripts/build_ngram.py --corpus text.txt --corpus answers/ --out ngram
python scripts/build_ngram.py --corpus text.txt --out ngram --validate held_out.jsonl      # what is accepted of it
"""

import argparse
import sys

from jaxspec.console import attempt, command_of
from jaxspec.pipeline import DTYPES
from jaxspec.training import bar
from jaxspec.training.ngram import build_ngram
from jaxspec.training.validate import reader


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument(
        "--corpus",
        action="append",
        required=True,
        metavar="FILE",
        help=".txt, .jsonl, a shard of generate_corpus.py or a folder of them; repeatable",
    )
    p.add_argument("--out", required=True, metavar="DIR", help="gets the table")
    p.add_argument("--target", default="smollm2-135m-instruct", help="folder, file, hub id (default: %(default)s)")
    p.add_argument("--budget-mb", type=float, default=8.0, metavar="MB", help="of the table (default: %(default)s)")
    p.add_argument("--min-count", type=int, default=2, metavar="N", help="rarer ones are left out (default: 2)")
    p.add_argument("--min-probability", type=float, default=0.25, metavar="P", help="of the last token (default: 0.25)")
    orders = {"default": (2, 5), "metavar": ("FROM", "TO"), "help": "tokens of a sequence (default: 2 5)"}
    p.add_argument("--orders", type=int, nargs=2, **orders)
    p.add_argument("--data-note", metavar="TEXT", help="the data and its licences, for the card")
    p.add_argument("--validate", metavar="FILE", help="held-out prompts, decoded with the table by the engine")
    p.add_argument("--per-category", type=int, default=2, metavar="N", help="held-out prompts of each (default: 2)")
    p.add_argument("--validate-tokens", type=int, default=64, metavar="N", help="of an answer (default: 64)")
    p.add_argument("--lookahead", type=int, default=4, metavar="K", help="drafts a round while validating (default: 4)")
    p.add_argument("--dtype", default="float32", choices=sorted(DTYPES), help="of the target (default: %(default)s)")
    p.add_argument("--overwrite", action="store_true", help="replace DIR if it is a draft")
    return p.parse_args(arguments)


def run(args: argparse.Namespace, command: str) -> None:
    """Build, and say what came of it."""
    options = {name: getattr(args, name) for name in ("budget_mb", "min_count", "min_probability", "overwrite")}
    sizes = {"per_category": args.per_category, "max_new_tokens": args.validate_tokens, "lookahead": args.lookahead}
    tokenizer, judge = reader(args.target, args.validate, dtype=args.dtype, **sizes)
    with bar("n-grams") as told:
        record = build_ngram(
            args.corpus,
            tokenizer,
            args.out,
            orders=tuple(args.orders),
            command=command,
            note=args.data_note,
            judge=judge,
            told=told,
            **options,
        )
    kept = ", ".join(f"{n:,} of {record['candidates'][order]:,} of {order}" for order, n in record["entries"].items())
    print(f"{args.out}: {record['tokens']:,} tokens, {record['mb']} MB; sequences kept: {kept}")


def main(arguments: list[str] | None = None) -> int:
    """Build as the command line says; the exit status."""
    args = parse(arguments)
    command = command_of("build_ngram.py", arguments)
    return attempt(lambda: run(args, command), interrupted="nothing was left")


if __name__ == "__main__":
    sys.exit(main())
