"""Let the target answer prompts, in batches, into shards of token ids: what its drafts are trained on.

python scripts/generate_corpus.py --prompts prompts.jsonl --out corpus/greedy
"""

import argparse
import sys
import time
from pathlib import Path

from jaxspec.checkpoint import fingerprint
from jaxspec.console import attempt
from jaxspec.contracts import EngineParams
from jaxspec.pipeline import load
from jaxspec.text import read_prompts
from jaxspec.training import Answering, bar, generate_corpus


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--prompts", required=True, metavar="FILE", help=".jsonl with prompt or messages, or .txt")
    p.add_argument("--out", required=True, metavar="DIR", help="gets the shards; an interrupted run goes on from there")
    p.add_argument("--target", default="smollm2-135m-instruct", help="folder, file, hub id (default: %(default)s)")
    p.add_argument("--max-new-tokens", type=int, default=96, metavar="M", help="of an answer (default: %(default)s)")
    p.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    p.add_argument("--top-p", type=float, default=1.0, help="nucleus of sampled answers (default: %(default)s)")
    p.add_argument("--seed", type=int, default=0, help="of samples and of the prompts' order (default: %(default)s)")
    p.add_argument("--rows", type=int, default=32, help="prompts answered side by side (default: %(default)s)")
    p.add_argument("--shard", type=int, default=256, help="prompts a file (default: %(default)s)")
    p.add_argument("--limit", type=int, metavar="N", help="take the first N prompts (default: all)")
    p.add_argument("--no-chat", action="store_true", help="go on with the prompt as it stands, without the template")
    p.add_argument("--dtype", default="float32", help="of weights and caches (default: %(default)s)")
    return p.parse_args(arguments)


def run(args: argparse.Namespace) -> None:
    """Answer every prompt of the file that fits the target."""
    texts = read_prompts(args.prompts)[: args.limit]
    pipeline = load(args.target, drafts=(), dtype=args.dtype)
    most = pipeline.target.model.config.max_positions - args.max_new_tokens
    encoded = [pipeline.encode(text, chat=not args.no_chat) for text in texts]
    fitting = [prompt for prompt in encoded if len(prompt) <= most]
    if len(fitting) < len(encoded):
        sys.stderr.write(f"{len(encoded) - len(fitting)} prompts are longer than {most} tokens and left out\n")
    target = fingerprint(pipeline.target.model.config, pipeline.target.params)
    names = ("max_new_tokens", "temperature", "top_p", "seed", "rows", "shard", "dtype")
    how = Answering(target, **{name: getattr(args, name) for name in names})
    ends = {"vocab_size": pipeline.vocab_size, "stop_ids": pipeline.target.tokenizer.eos_ids}
    params, began = EngineParams(pipeline.target.params, {}, ()), time.perf_counter()
    with bar("answers") as told:
        files = generate_corpus(pipeline.target.model, params, fitting, Path(args.out), how, **ends, told=told)
    sys.stderr.write(f"{len(files)} shards in {args.out}, {time.perf_counter() - began:.0f} s\n")


def main(arguments: list[str] | None = None) -> int:
    """Generate as the command line says; the exit status."""
    args = parse(arguments)
    return attempt(lambda: run(args), interrupted="whole shards are kept, the same command goes on from them")


if __name__ == "__main__":
    sys.exit(main())
