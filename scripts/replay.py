"""Record what every draft source would do, and replay selectors on the record, without a model.

python scripts/replay.py --record prompts.jsonl --draft lookup --draft suffix --draft feature --out records
python scripts/replay.py --traces records --costs flat --draft-step 0.333 0.1 0.03 --select field rule fixed:lookup:7
python scripts/replay.py --traces records --order code chat code --part 400            # texts that change
python scripts/replay.py --regret regret.png --draft-step 0.1                          # made-up texts
"""

import argparse
import json
import os
import sys
from dataclasses import fields

from rich.console import Console


def parse(arguments: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = p.add_mutually_exclusive_group(required=True)
    what.add_argument("--record", dest="prompts", metavar="FILE", help="prompts to record, .jsonl or .txt, into --out")
    what.add_argument("--traces", metavar="PATH", help="folder of records, or .jsonl of traces, to play selectors on")
    what.add_argument("--regret", metavar="FILE.png", help="play them on made-up texts and draw it (extra `bench`)")
    p.add_argument("--out", metavar="FOLDER", help="of the records")
    p.add_argument("--target", default="smollm2-135m-instruct", help="as in generate.py (default: %(default)s)")
    p.add_argument("--draft", dest="drafts", action="append", metavar="SOURCE", help="as in generate.py")
    p.add_argument("--per-category", type=int, metavar="N", help="prompts of each category (default: all)")
    p.add_argument("--max-new-tokens", type=int, default=96, metavar="M", help="(default: %(default)s)")
    p.add_argument("--lookahead", type=int, default=7, metavar="MAX", help="drafts a source (default: %(default)s)")
    p.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    p.add_argument("--dtype", default="float32", help="float32 (default), bfloat16, float16")
    p.add_argument("--seed", type=int, default=0, help="of sampled or made-up texts (default: %(default)s)")
    p.add_argument("--costs", default="flat", help="flat, cpu, or a .json file of a cost table (default: flat)")
    p.add_argument("--draft-step", type=float, nargs="+", default=[1 / 3, 0.1, 0.03], metavar="C", help="plain steps")
    p.add_argument("--select", nargs="+", default=["field", "rule"], help="selectors (default: field rule)")
    p.add_argument("--fresh", action="store_true", help="every text with a new selector; default: it is carried on")
    p.add_argument("--order", nargs="+", default=[], metavar="CATEGORY", help="splice these into one text")
    p.add_argument("--part", type=int, metavar="T", help="tokens of each part of --order (default: all)")
    p.add_argument("--sabotage", metavar="SOURCE:PLACE", help="all drafts of a source are wrong from this token on")
    p.add_argument("--tokens", type=int, default=4000, help="of each made-up text (default: %(default)s)")
    p.add_argument("--json", metavar="FILE", help="write the whole report here")
    return p.parse_args(arguments)


def run(args: argparse.Namespace) -> None:
    """Record, replay, or measure regret as the arguments say."""
    from jaxspec.bench.compare import Options, compare, regret, tables
    from jaxspec.bench.record_run import RecordOptions, record_folder
    from jaxspec.bench.show import progress
    from jaxspec.console import check_place, write_beside

    for place in filter(None, (args.json, args.regret)):
        check_place(place)
    if args.prompts is not None:
        asked = RecordOptions(**{each.name: getattr(args, each.name) for each in fields(RecordOptions)})
        with progress() as told:
            made = record_folder(asked, told)
        return print(f"{len(made)} records of {sum(map(len, made))} tokens are in {args.out}")
    asked = Options(**{each.name: getattr(args, each.name) for each in fields(Options)})
    report = compare(asked) if args.regret is None else regret(asked, plot=args.regret)
    if args.json is not None:
        write_beside(args.json, json.dumps(report, indent=1, allow_nan=False) + "\n")
    console = Console(width=None if sys.stdout.isatty() else 120)
    for part in tables(report):
        console.print(part, highlight=False)


def main(arguments: list[str] | None = None) -> int:
    """Record or replay as the command line says; the exit status."""
    args = parse(arguments)
    if args.prompts is None:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from jaxspec.console import attempt

    return attempt(lambda: run(args), interrupted="nothing was written")


if __name__ == "__main__":
    sys.exit(main())
