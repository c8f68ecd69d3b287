"""Measure what rounds cost on this device, for selectors that weigh tokens against time, and store it.

python scripts/calibrate.py --draft lookup --draft suffix --draft feature
python scripts/calibrate.py --draft lookup --rows 1 --rows 16 --out costs-{rows}.json   # to read, or for --costs
"""

import argparse
import json
import os
import sys

from rich.console import Console


def parse(arguments: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--target", default="smollm2-135m-instruct", help="as in generate.py (default: %(default)s)")
    p.add_argument("--draft", action="append", metavar="SOURCE", help="as in generate.py; costs are of all together")
    p.add_argument("--lookahead", type=int, default=7, metavar="MAX", help="drafts a round (default: %(default)s)")
    p.add_argument("--rows", type=int, action="append", metavar="B", help="decoded side by side; repeatable (1)")
    p.add_argument("--max-length", type=int, default=512, metavar="S", help="tokens a row (default: %(default)s)")
    p.add_argument("--dtype", default="float32", help="as in generate.py (default: %(default)s)")
    p.add_argument("--mesh", metavar="data=1,model=4", help="as in generate.py")
    p.add_argument("--out", metavar="FILE", help="write the table here too; {rows} stands for their number")
    return p.parse_args(arguments)


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot be, before anything is loaded."""
    from jaxspec.files import check_place
    from jaxspec.sources import check_draft

    args.rows = args.rows or [1]
    for name, least in (("rows", min(args.rows)), ("max-length", args.max_length)):
        if least < 1:
            raise ValueError(f"--{name} is {least}; it must be 1 or more")
    for draft in args.draft or ():
        check_draft(draft)
    if args.out is not None:
        if len(set(args.rows)) > 1 and "{rows}" not in args.out:
            raise ValueError(f"--out {args.out} names one file for several --rows; write {{rows}} in its name")
        check_place(args.out.replace("{rows}", "0"))


def run(args: argparse.Namespace) -> None:
    """Measure every number of rows, and show what came of it."""
    check(args)
    from jaxspec import costs, pipeline
    from jaxspec.bench.show import progress
    from jaxspec.files import write_beside

    options = {name: getattr(args, name) for name in ("lookahead", "dtype", "mesh")}
    loaded = pipeline.load(args.target, drafts=args.draft, select="goodput", **options)
    for rows in dict.fromkeys(args.rows):
        with progress() as told:
            setup, priced = loaded.measure(rows, args.max_length, lambda *done, n=rows: told(f"{n} rows", *done))
        out = Console(width=None if sys.stdout.isatty() else 120)
        for part in costs.tables(priced.table, setup.names, setup.windows, title=f"{args.target}, {rows} rows"):
            out.print(part, highlight=False)
        out.print(f"measured in {priced.taken:.1f} s, compilation included; stored", highlight=False)
        if args.out is not None:
            said = costs.document(priced.table, setup.names, setup.windows)
            write_beside(args.out.replace("{rows}", str(rows)), json.dumps(said, indent=1) + "\n")


def main(arguments: list[str] | None = None) -> int:
    """Measure as the command line says; the exit status."""
    args = parse(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from jaxspec.console import attempt

    return attempt(lambda: run(args), interrupted="what was measured by then is stored")


if __name__ == "__main__":
    sys.exit(main())
