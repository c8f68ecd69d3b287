"""Training of small models: token batches, losses, and one loop of AdamW steps."""

from jaxspec.training.data import read_text, split_off, tokenize, windows
from jaxspec.training.fit import Recipe, fit
from jaxspec.training.losses import divergence, mean_over, next_token
from jaxspec.training.tokenizer import train_tokenizer

__all__ = [
    "Recipe",
    "divergence",
    "fit",
    "mean_over",
    "next_token",
    "read_text",
    "split_off",
    "tokenize",
    "train_tokenizer",
    "windows",
]
