"""Train the tiny target and draft of `checkpoints/tiny` from text files, on a CPU, in minutes.

python scripts/train_tiny.py --corpus novels.txt --corpus plays.txt --out checkpoints/tiny
"""

import argparse
import sys
import time
from functools import partial
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from jaxspec import checkpoint, training
from jaxspec.console import attempt
from jaxspec.models import Decoder, ModelConfig, bind

VOCABULARY, ROWS, WIDTH, TEXT = 512, 16, 128, 2_000_000  # ids; rows and tokens a batch; characters of a file at most
TARGET = {"hidden_size": 64, "intermediate_size": 176, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2}
DRAFT = {"hidden_size": 32, "intermediate_size": 96, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1}
SHARED = {"family": "llama", "vocab_size": VOCABULARY, "head_dim": 16, "max_positions": 2048, "tie_embeddings": True}
EXITS = ((2, 0.3),)  # the target is trained after two layers too, so that exit:2 drafts well


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--corpus", action="append", required=True, metavar="FILE", help="UTF-8 text; repeatable")
    p.add_argument("--out", default="checkpoints/tiny", help="gets target/ and draft/ (default: %(default)s)")
    p.add_argument("--seed", type=int, default=0, help="same seed, same weights on one machine (default: %(default)s)")
    p.add_argument("--steps", type=int, default=1500, help="of the target, then of the draft (default: %(default)s)")
    return p.parse_args(arguments)


def say(name: str, began: float, step: int, loss: jax.Array) -> None:
    """Progress, now and then."""
    if step % 100 == 0:
        sys.stderr.write(f"{name}: step {step}, loss {float(loss):.3f}, {time.perf_counter() - began:.0f} s\n")


def train(args: argparse.Namespace) -> None:
    """Tokenizer, target, draft; then both losses on text that was held out; then the two checkpoints."""
    recipe, began = training.Recipe(args.steps), time.perf_counter()
    texts = [training.read_text(file)[:TEXT] for file in args.corpus]
    tokenizer = training.train_tokenizer(texts, size=VOCABULARY)
    kept, held = zip(*(training.split_off(training.tokenize(tokenizer, text), 0.02) for text in texts), strict=True)
    ends = {"bos_id": tokenizer.bos_id, "eos_ids": tokenizer.eos_ids}
    configs = [ModelConfig(**SHARED, **sizes, **ends) for sizes in (TARGET, DRAFT)]
    (big, p), (small, q) = (bind(Decoder(c, rngs=nnx.Rngs(args.seed + i))) for i, c in enumerate(configs))
    batches = partial(training.windows, rows=ROWS, width=WIDTH + 1)
    unseen = list(batches(held, steps=20, seed=0))
    first, second = (batches(kept, steps=args.steps, seed=args.seed + i) for i in range(2))
    p, _ = training.fit(training.next_token(big, exits=EXITS), p, first, recipe, on_step=partial(say, "target", began))
    apart = training.divergence(small, big)
    q, _ = training.fit(apart, q, second, recipe, context=p, on_step=partial(say, "draft", began))
    loss = training.mean_over(training.next_token(big), p, unseen)
    behind = training.mean_over(apart, q, unseen, context=p)
    print(f"held-out text, nats a token: the target's loss {loss:.3f}, the draft's divergence {behind:.3f}")
    for name, config, params in zip(("target", "draft"), configs, (p, q), strict=True):
        stored = {key: np.asarray(value, jax.numpy.bfloat16) for key, value in params.items()}
        hf = config.to_hf() | {"dtype": "bfloat16"}
        checkpoint.save(Path(args.out, name), hf, stored, write_tokenizer=tokenizer.save, overwrite=True)


def main(arguments: list[str] | None = None) -> int:
    """Train as the command line says; the exit status."""
    args = parse(arguments)
    return attempt(lambda: train(args), interrupted="nothing was written")


if __name__ == "__main__":
    sys.exit(main())
