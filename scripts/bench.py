"""Time decoding against our own plain loop and against transformers, on prompts by category.

python scripts/bench.py --prompts prompts.jsonl --per-category 4 --modes rule fixed:none --peer transformers
"""

import argparse
import os
import sys

from rich.console import Console

from jaxspec import telemetry
from jaxspec.bench.run import PEERS, Options, bench
from jaxspec.bench.show import progress, save, tables
from jaxspec.console import command_of, fail

WIDTH = 120
"""Columns of a table that goes to a file."""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--prompts", required=True, metavar="FILE", help=".jsonl with prompt, category and id; or .txt")
    p.add_argument("--target", default="smollm2-135m-instruct", help="folder, file, hub id (default: %(default)s)")
    p.add_argument("--draft", action="append", metavar="SOURCE", help="as in generate.py, where the default is said")
    p.add_argument("--modes", nargs="+", default=["rule", "fixed:none"], help="rule, fixed:SOURCE:K, fixed:none")
    p.add_argument("--per-category", type=int, metavar="N", help="prompts of each category (default: all)")
    p.add_argument("--max-new-tokens", type=int, default=96, metavar="M", help="(default: %(default)s)")
    p.add_argument("--repeats", type=int, default=1, metavar="R", help="take medians over them (default: %(default)s)")
    p.add_argument("--rows", type=int, nargs="+", default=(), metavar="B", help="also with so many rows side by side")
    p.add_argument("--peer", metavar="NAME", help=f"race this one too: {', '.join(PEERS)} (extra `parity`)")
    p.add_argument("--lookahead", type=int, default=7, metavar="MAX", help="drafts a round (default: %(default)s)")
    p.add_argument("--dtype", default="float32", help="float32 (default), bfloat16, float16; the peer's too")
    p.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    p.add_argument("--seed", type=int, default=0, help="of sampled rows (default: %(default)s)")
    p.add_argument("--json", metavar="OUT", help="write the whole report here")
    p.add_argument("--plot", metavar="OUT.png", help="draw it here (extra `bench`)")
    p.add_argument("--report", metavar="OUT.html", help="one page: comparison, plots, telemetry, provenance")
    return p.parse_args(arguments)


def options(args: argparse.Namespace) -> Options:
    """The command line as the library takes it."""
    drafts = None if args.draft is None else tuple(args.draft)
    given = vars(args) | {"modes": tuple(dict.fromkeys(args.modes)), "drafts": drafts, "rows": tuple(args.rows)}
    del given["draft"]
    return Options(**given)


def main(arguments: list[str] | None = None) -> int:
    """Measure as the command line says; the exit status."""
    asked = options(parse(arguments))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    telemetry.keep_compilations()
    try:
        with progress() as told:
            report = bench(asked, told=told)
        console = Console()
        if not console.is_terminal or console.width < WIDTH:  # a terminal folds what is too long, rich would cut it
            console = Console(width=WIDTH)
        for part in tables(report):
            console.print(part, highlight=False)
        save(report, asked, command_of("bench.py", arguments))
    except ValueError as error:
        return fail(str(error))
    except KeyboardInterrupt:
        return fail("interrupted; nothing was written", 130)
    return 0


if __name__ == "__main__":
    sys.exit(main())
