"""Byte-level BPE vocabularies: bytes spelled as printable characters, text cut by a pattern before the merges."""

from dataclasses import dataclass

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from jaxspec.text.gguf_fields import GGUFVocabulary


@dataclass(frozen=True)
class Splitting:
    """How text is cut before merging: `pattern` None is GPT-2's own, built into the `tokenizers` package.

    `whole_words` looks a cut up in the vocabulary before any merge is tried, `add_bos` is what files that do not say
    mean.
    """

    pattern: str | None = None
    whole_words: bool = False
    add_bos: bool = False


_GPT2 = Splitting()
_QWEN2 = Splitting(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = Splitting(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+",
    whole_words=True,
    add_bos=True,
)

# Equal to what transformers makes of the same fields. Two originals differ from their own GGUF files in ways that the
# files do not state: SmolLM's cuts every digit off first (other ids only where several blanks precede a digit), and
# Qwen's composes its input (NFC; other ids only for decomposed text, which then decodes composed).
SPLITTINGS = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _GPT2,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
}
"""By `tokenizer.ggml.pre`; patterns from the models' published tokenizer.json files."""


def splitting(vocabulary: GGUFVocabulary) -> Splitting:
    """The way of cutting that the vocabulary names; ValueError lists those that are supported."""
    known = SPLITTINGS.get(vocabulary.pre or "default")
    if known is None:
        raise ValueError(
            f"this GGUF file cuts text by {vocabulary.pre!r} (tokenizer.ggml.pre), which is not supported; supported "
            f"are {', '.join(SPLITTINGS)}"
        )
    return known


def byte_level_backend(vocabulary: GGUFVocabulary) -> tokenizers.Tokenizer:
    """The tokenizer without its special tokens."""
    cut = splitting(vocabulary)
    if vocabulary.merges is None:
        raise ValueError("this GGUF file has a byte-level vocabulary but no merges (tokenizer.ggml.merges)")
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    model = models.BPE(vocab=ids, merges=vocabulary.merges, ignore_merges=cut.whole_words)
    backend = tokenizers.Tokenizer(model)
    spell_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cut.pattern is None)
    if cut.pattern is None:
        backend.pre_tokenizer = spell_bytes
    else:
        cut_text = pre_tokenizers.Split(tokenizers.Regex(cut.pattern), behavior="isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([cut_text, spell_bytes])
    backend.decoder = decoders.ByteLevel()
    return backend
