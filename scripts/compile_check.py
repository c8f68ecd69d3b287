"""Compile the whole loop for a TPU or GPU without one, and report memory, copies, loops and collectives.

python scripts/compile_check.py --topology v5e:2x4 --target llama-3-8b --draft lookup --draft exit:4

Needs the chip's compiler: libtpu, or jax-cuda12-plugin, jax-cuda12-pjrt and nvidia-cuda-nvcc-cu12, in the versions that
fit jax. The exit status is 1 where something is found that must not be.
"""

import argparse
import json
import os
import sys
from pathlib import Path


def parse(arguments: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument(
        "--topology", required=True, help="v5e:2x2, v5e:2x4, v5e:4x4, v5p:2x2x1, v6e:2x2, v6e:2x4, h200, ..."
    )
    p.add_argument("--target", default="llama-3-8b", help="preset or config.json (default: %(default)s)")
    p.add_argument(
        "--draft", action="append", metavar="SOURCE", help="generate.py's, or lm:PRESET_OR_CONFIG; repeatable"
    )
    p.add_argument("--mesh", metavar="data=1,model=4", help="default: all devices in model")
    p.add_argument("--rows", type=int, default=8, help="(default: %(default)s)")
    p.add_argument("--context", type=int, default=4096, metavar="S", help="tokens a row holds (default: %(default)s)")
    p.add_argument("--layers", type=int, metavar="L", help="of the target, in place of its own")
    p.add_argument("--draft-layers", type=int, metavar="L", help="of model drafts, in place of their own")
    p.add_argument("--lookahead", type=int, default=7, metavar="MAX", help="drafts a round (default: %(default)s)")
    p.add_argument(
        "--verify", choices=("greedy", "coupled", "rejection"), default="coupled", help="(default: %(default)s)"
    )
    p.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="(default: %(default)s)")
    p.add_argument("--shard-drafts", action="store_true", help="split model drafts too, where one device holds none")
    p.add_argument("--dump", type=Path, metavar="FOLDER", help="keep the compiler's own files")
    p.add_argument("--json", action="store_true", help="one object on standard output instead of tables")
    return p.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Compile as the command line says; the exit status."""
    args = parse(arguments)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from rich.console import Console

    from jaxspec.bench import compile_check, compile_table

    options = {name: value for name, value in vars(args).items() if name not in ("draft", "dump", "json")}
    plan = compile_check.Plan(drafts=tuple(args.draft or ("lookup",)), **options)
    try:
        report = compile_check.check(plan, dump=args.dump)
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    if args.json:
        print(json.dumps(report))
    else:
        for table in compile_table.tables(report):
            Console().print(table)
    return 1 if report["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
