"""Train a draft of a target on text in its own voice, with the target's own next-token laws.

python scripts/train_draft.py --kind feature --corpus corpus/greedy --out checkpoints/my-target/feature
"""

import argparse
import os
import sys

from jaxspec import telemetry
from jaxspec.console import fail
from jaxspec.training.draft_run import Options, train_draft


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kind", required=True, choices=("lm", "medusa", "feature", "exit"))
    p.add_argument("--corpus", required=True, metavar="DIR", help="shards of scripts/generate_corpus.py")
    p.add_argument("--out", required=True, metavar="DIR", help="gets the trained draft")
    p.add_argument("--work", metavar="DIR", help="checkpoints, metrics, plot (default: OUT with -run after it)")
    p.add_argument("--teacher", metavar="DIR", help="the target's laws (default: CORPUS with -teacher after it)")
    p.add_argument("--target", default="smollm2-135m-instruct", help="folder, file, hub id (default: %(default)s)")
    p.add_argument("--init-from", metavar="DIR", help="a trained draft to start from (default: the target's layers)")
    p.add_argument("--steps", type=int, default=2000, help="of the optimiser (default: %(default)s)")
    p.add_argument("--rate", type=float, default=1e-3, help="peak learning rate (default: %(default)s)")
    p.add_argument("--rows", type=int, default=16, help="stretches of text a step (default: %(default)s)")
    p.add_argument("--width", type=int, default=128, help="tokens of a stretch (default: %(default)s)")
    p.add_argument("--accumulate", type=int, default=1, help="batches a step (default: %(default)s)")
    p.add_argument("--loss", default="kl", help="kl, reverse-kl, js, tv (default: %(default)s)")
    p.add_argument("--loss-temperature", type=float, default=1.0, help="of both laws (default: %(default)s)")
    p.add_argument(
        "--tokens-share", type=float, default=0.0, help="of cross-entropy in the loss (default: %(default)s)"
    )
    p.add_argument("--vocab", type=int, default=8192, help="tokens the draft can say (default: %(default)s)")
    p.add_argument("--layers", type=int, nargs="+", metavar="L", help="lm: the target's layers it starts from")
    p.add_argument("--exit-layer", type=int, metavar="K", help="exit: layers of the target it reads after")
    p.add_argument("--rank", type=int, default=128, help="exit: of the adapter (default: %(default)s)")
    p.add_argument("--heads", type=int, default=4, help="medusa: depths (default: %(default)s)")
    p.add_argument("--depths", type=int, default=3, help="feature: own steps it is trained on (default: %(default)s)")
    p.add_argument("--taps", type=int, nargs="+", metavar="K", help="feature: layers of the target it reads after")
    p.add_argument("--top", type=int, default=24, help="likeliest tokens kept of a law (default: %(default)s)")
    p.add_argument("--validate", metavar="FILE", help="held-out prompts, decoded with the draft by the engine")
    p.add_argument("--validate-every", type=int, default=0, metavar="N", help="steps (default: at the end alone)")
    p.add_argument("--per-category", type=int, default=2, help="held-out prompts of each (default: %(default)s)")
    p.add_argument("--save-every", type=int, default=200, metavar="N", help="steps (default: %(default)s)")
    p.add_argument("--dtype", default="float32", help="the loss computes in it (default: %(default)s)")
    p.add_argument("--mesh", help="data=8: rows over these devices (default: one)")
    p.add_argument("--seed", type=int, default=0, help="of batches and fresh weights (default: %(default)s)")
    p.add_argument("--overwrite", action="store_true", help="replace a draft that lies at OUT")
    return p.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Train as the command line says; the exit status."""
    args = parse(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    telemetry.keep_compilations()
    try:
        train_draft(Options(**vars(args)))
    except ValueError as error:
        return fail(str(error))
    except OSError as error:
        return fail(str(error), 1)
    except KeyboardInterrupt:
        return fail("interrupted; the same command goes on from the last checkpoint", 130)
    return 0


if __name__ == "__main__":
    sys.exit(main())
