"""Find kinds of text by a target's hidden states over prompts, for selectors to tell them apart.

python scripts/build_clusters.py --prompts prompts.jsonl --out clusters
"""

import argparse
import sys

from rich.console import Console
from rich.table import Table

from jaxspec.console import attempt, command_of


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--prompts", required=True, metavar="FILE", help=".jsonl or .txt, one prompt a line")
    p.add_argument("--out", required=True, metavar="DIR", help="gets the clusters and a card")
    p.add_argument("--target", default="smollm2-135m-instruct", help="folder, file, hub id (default: %(default)s)")
    p.add_argument("--clusters", type=int, default=8, metavar="C", help="kinds of text (default: %(default)s)")
    p.add_argument("--tokens", type=int, default=256, metavar="T", help="of a prompt at the most (default: 256)")
    p.add_argument("--seed", type=int, default=0, help="of the first clusters (default: %(default)s)")
    p.add_argument("--overwrite", action="store_true", help="replace DIR if it holds clusters")
    return p.parse_args(arguments)


def run(args: argparse.Namespace, command: str) -> None:
    """Build, and say which kinds of prompts went where."""
    from jaxspec.training.clusters import build_clusters
    from jaxspec.training.progress import bar

    with bar("clusters") as told:
        card = build_clusters(command=command, told=told, **vars(args))
    table = Table(title=f"{card['points']:,} points of text; those of each category by cluster")
    table.add_column("")
    for cluster in range(args.clusters):
        table.add_column(str(cluster), justify="right")
    for name, counts in card["by_category"].items():
        table.add_row(name or "all", *map(str, counts))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def main(arguments: list[str] | None = None) -> int:
    """Build as the command line says; the exit status."""
    args = parse(arguments)
    command = command_of("build_clusters.py", arguments)
    return attempt(lambda: run(args, command), interrupted="nothing was left")


if __name__ == "__main__":
    sys.exit(main())
