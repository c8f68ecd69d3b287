"""Train a draft of a target on text in its own voice, with the target's own next-token laws.

python scripts/train_draft.py --kind feature --corpus corpus/greedy --out checkpoints/my-target/feature
python scripts/train_draft.py --kind feature --text notes.txt --init-from DRAFT --out my-draft    # your own text
python scripts/train_draft.py --calibrate my-draft --corpus corpus/sampled                        # its temperature
"""

import argparse
import os
import sys

from jaxspec import telemetry
from jaxspec.console import fail
from jaxspec.training.draft_run import calibrate_draft, train_draft
from jaxspec.training.options import Options, add_options


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(p)
    return p.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Train as the command line says; the exit status."""
    options = Options(**vars(parse(arguments)))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    telemetry.keep_compilations()
    try:
        if options.calibrate is None:
            train_draft(options)
        else:
            fit = calibrate_draft(options)
            print(f"temperature {fit.temperature}: total variation {fit.before:.4f} at 1, {fit.after:.4f} now")
    except ValueError as error:
        return fail(str(error))
    except OSError as error:
        return fail(str(error), 1)
    except KeyboardInterrupt:
        return fail("interrupted; the same command goes on from the last checkpoint", 130)
    return 0


if __name__ == "__main__":
    sys.exit(main())
