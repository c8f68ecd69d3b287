"""Train a draft of a target on text in its own voice, with the target's own next-token laws.

python scripts/train_draft.py --kind feature --corpus corpus/greedy --out checkpoints/my-target/feature
python scripts/train_draft.py --kind feature --text notes.txt --init-from DRAFT --out my-draft    # your own text
python scripts/train_draft.py --calibrate my-draft --corpus corpus/sampled                        # its temperature
"""

import argparse
import sys

from jaxspec.console import attempt, command_of
from jaxspec.training.draft_run import calibrate_draft, train_draft
from jaxspec.training.options import Options, add_options


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(p)
    return p.parse_args(arguments)


def run(options: Options, command: str) -> None:
    """Train, or fit a temperature alone."""
    if options.calibrate is None:
        train_draft(options, command=command)
    else:
        fit = calibrate_draft(options)
        print(f"temperature {fit.temperature}: total variation {fit.before:.4f} at 1, {fit.after:.4f} now")


def main(arguments: list[str] | None = None) -> int:
    """Train as the command line says; the exit status."""
    options = Options(**vars(parse(arguments)))
    command = command_of("train_draft.py", arguments)
    return attempt(lambda: run(options, command), interrupted="the same command goes on from the last checkpoint")


if __name__ == "__main__":
    sys.exit(main())
