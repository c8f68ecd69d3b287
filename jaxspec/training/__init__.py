"""Training of small models: token batches, losses, and one loop of AdamW steps."""

from jaxspec.training.corpus import Answering, Shard, generate_corpus, read_shard
from jaxspec.training.data import read_text, split_off, tokenize, windows
from jaxspec.training.fit import Recipe, fit
from jaxspec.training.losses import divergence, mean_over, next_token
from jaxspec.training.progress import bar
from jaxspec.training.tokenizer import train_tokenizer

__all__ = [
    "Answering",
    "Recipe",
    "Shard",
    "bar",
    "divergence",
    "fit",
    "generate_corpus",
    "mean_over",
    "next_token",
    "read_shard",
    "read_text",
    "split_off",
    "tokenize",
    "train_tokenizer",
    "windows",
]
