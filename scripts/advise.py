"""Say whether a draft would pay, at which acceptance and lookahead, and whether it fits; nothing is decoded.

python scripts/advise.py --target llama-3-70b --draft llama-3-8b --draft exit:8 --chip v5e:4x4 --acceptance 0.7
python scripts/advise.py --target 70b --draft 8b --bandwidth 819 --flops 197 --memory 16 --mesh model=16
python scripts/advise.py --target BIG --draft SMALL --telemetry out.json      # on this machine, which is measured
"""

import argparse
import json
import os
import sys
from pathlib import Path

MODELS = "folder, file, hub id, size such as 8b, config.json, or smollm2-135m, llama-3-1b, llama-3-8b, llama-3-70b"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--target", default="smollm2-135m-instruct", help=f"{MODELS} (default: %(default)s)")
    p.add_argument(
        "--draft", action="append", help="the same, or a source of generate.py; repeatable (default: lookup)"
    )
    p.add_argument(
        "--acceptance", action="append", metavar="A", help="0.7, or 0.7,0.6,0.5 by depth; one, or one a draft"
    )
    p.add_argument("--telemetry", action="append", metavar="FILE", help="of generate.py --json or bench.py --json")
    p.add_argument("--rows", type=int, default=1, help="decoded side by side (default: %(default)s)")
    p.add_argument("--context", type=int, metavar="S", help="tokens a row holds (default: 4096, or the target's most)")
    p.add_argument("--chip", metavar="CHIP", help="v5e, v5p, v6e, h200, v5e:4x4, ..., cpu: this machine (default)")
    p.add_argument("--mesh", metavar="data=1,model=4", help="default: all of the chip's topology in model")
    p.add_argument("--bandwidth", type=float, metavar="GB/s", help="of a device's memory, in place of the chip's")
    p.add_argument("--flops", type=float, metavar="TFLOP/s", help="of a device, in place of the chip's")
    p.add_argument("--memory", type=float, metavar="GB", help="of a device, in place of the chip's")
    p.add_argument("--overhead", type=float, default=0.0, metavar="US", help="microseconds of every pass (default: 0)")
    p.add_argument("--shard-drafts", action="store_true", help="split model drafts too, not whole on every device")
    p.add_argument("--dtype", help="bfloat16, float16, float32 (default: bfloat16; float32 on this machine)")
    p.add_argument("--lookahead", type=int, default=7, metavar="MAX", help="drafts a round (default: %(default)s)")
    p.add_argument("--plot", metavar="FILE.png", help="speed-up by acceptance and lookahead (extra `bench`)")
    p.add_argument("--json", metavar="FILE", help="the whole report; - is standard output, instead of tables")
    return p.parse_args(arguments)


def run(args: argparse.Namespace) -> None:
    """Advise as the arguments say."""
    from rich.console import Console

    from jaxspec.bench.advise import Options, advise
    from jaxspec.bench.advise_show import plot, tables

    named = {name: value for name, value in vars(args).items() if name not in ("draft", "acceptance", "telemetry")}
    lists = {"acceptance": tuple(args.acceptance or ()), "telemetry": tuple(args.telemetry or ())}
    report = advise(Options(drafts=tuple(args.draft or ("lookup",)), **lists, **named))
    if args.json:
        text = json.dumps(report, indent=2, allow_nan=False)
        print(text) if args.json == "-" else Path(args.json).write_text(text + "\n", encoding="utf-8")
    if args.plot:
        plot(report, args.plot)
    if args.json != "-":
        console = Console()
        console = console if console.is_terminal and console.width >= 120 else Console(width=120)
        for part in tables(report):
            console.print(part, highlight=False, markup=False)


def main(arguments: list[str] | None = None) -> int:
    """Advise as the command line says; the exit status."""
    args = parse(arguments)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from jaxspec.console import attempt

    return attempt(lambda: run(args), interrupted="nothing was written")


if __name__ == "__main__":
    sys.exit(main())
