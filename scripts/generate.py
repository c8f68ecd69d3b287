"""Generate text with speculative decoding: the tokens of plain decoding, faster.

python scripts/generate.py --chat --prompt "Why is the sky blue?"
"""

import argparse
import os
import sys


def parse(arguments: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--target", default="smollm2-135m-instruct", help="folder, file, hub id (default: %(default)s)")
    sources = "lookup, suffix, ngram, medusa, feature, lm, exit (each [:PATH]), lm:MODEL, exit:LAYERS, jacobi[:W:N:G]"
    p.add_argument("--draft", action="append", metavar="SOURCE", help=f"{sources}; default: the free and the trained")
    selects = "goodput[:PRIOR], router:FOLDER, hedge, ucb, thompson, exp3, rule, fixed:SOURCE:K"
    p.add_argument("--select", default="goodput", help=f"{selects} (default: %(default)s)")
    p.add_argument("--costs", metavar="FILE", help="what rounds cost, or guess; default: measured once, then kept")
    p.add_argument("--clusters", metavar="DIR", help="kinds of text, of build_clusters.py, for goodput and a router")
    p.add_argument("--lookahead", type=int, default=7, metavar="MAX", help="drafts a round (default: %(default)s)")
    p.add_argument("--no-speculation", action="store_true", help="plain decoding")
    p.add_argument("--prompt", action="append", help="repeatable: a batch")
    p.add_argument("--prompt-file", metavar="FILE", help=".jsonl or .txt, one prompt a line; else standard input")
    p.add_argument("--chat", action="store_true", help="put each prompt in the target's chat template")
    p.add_argument("--max-new-tokens", type=int, default=128, help="(default: %(default)s)")
    p.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    p.add_argument("--top-k", type=int, default=0, help="0 is off (default)")
    p.add_argument("--top-p", type=float, default=1.0, help="1 is off (default)")
    p.add_argument("--min-p", type=float, default=0.0, help="0 is off (default)")
    for name, off in (("repetition", 1.0), ("presence", 0.0), ("frequency", 0.0)):
        p.add_argument(f"--{name}-penalty", type=float, default=off, help=f"{off:g} is off (default)")
    p.add_argument("--min-tokens", type=int, default=0, help="no end token before that many (stop strings still end)")
    p.add_argument("--seed", type=int, help="same seed, same text; fresh where not given")
    p.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end at this string; repeatable")
    p.add_argument("--verify", choices=("greedy", "coupled", "rejection"), help="default: greedy at T 0, else coupled")
    p.add_argument("--draft-confidence", type=float, default=0.0, help="a model draft stops below this probability")
    p.add_argument("--draft-temperature", type=float, default=1.0, help="times the temperature for sampled drafts")
    p.add_argument("--num-samples", type=int, default=1, help="answers a prompt")
    p.add_argument("--logprobs", action="store_true", help="log-probability of every token")
    p.add_argument("--dtype", default="float32", help="float32 (exact, default), bfloat16, float16 (but for ties)")
    p.add_argument("--mesh", metavar="data=1,model=4", help="devices by axis: rows over data, the target over model")
    p.add_argument("--trace", metavar="FILE.html", help="a page: every token by its source, every round's figures")
    p.add_argument("--telemetry", metavar="FILE", help=".json, .jsonl or .prom: each source by the prompts' category")
    p.add_argument("--json", action="store_true", help="one object on standard output instead of text")
    p.add_argument("--quiet", action="store_true", help="the text alone: no table, no progress")
    return p.parse_args(arguments)


def run(args: argparse.Namespace) -> int:
    """Generate; the exit status."""
    from jaxspec.console import Screen, fail  # here: it takes seconds, --help needs none of it, and Ctrl-C may come

    try:
        screen = Screen(quiet=args.quiet, text=not args.json)
        answer = screen.generate(args)
        screen.save(answer, args)
    except ValueError as error:
        return fail(str(error))
    except OSError as error:  # a full disk, or a reader that has left, as in `generate.py | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python fails again when it flushes at exit
        return 1 if isinstance(error, BrokenPipeError) else fail(str(error), 1)
    screen.report(answer)
    return 130 if any(r.finish_reason == "interrupted" for r in answer.results) else 0


def main(arguments: list[str] | None = None) -> int:
    """Generate as the command line says; the exit status."""
    try:
        return run(parse(arguments))
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted before the first token\n")
        return 130


if __name__ == "__main__":
    status = main()
    if status == 130:
        sys.stdout.flush()
        os._exit(status)  # jaxlib, interrupted while it compiles, may crash when Python shuts down
    sys.exit(status)
