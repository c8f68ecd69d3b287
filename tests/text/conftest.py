"""Small vocabularies trained on the spot: byte-level ones for every way of cutting, and a SentencePiece one."""

import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from jaxspec.text import Tokenizer, from_gguf

SAMPLE = """The year 1984 had 366 days; pi is 3.14159, a million 1,000,000 and 0xFF is 255.
def area(radius: float) -> float:\n\treturn 3.0 * radius ** 2  # don't round\n\n\nif x != y:   print("no")\r\n
Emoji: 😀 👩‍👩‍👧 🇫🇷 👍🏽, combining: e\u0301 n\u0303 a\u0308\u0301, signs: ½ ² № ∑ “quotes”…
Latin: Ærøskøbing, naïve café, straße. Cyrillic: Привет, мир! Greek: Καλημέρα κόσμε.
Arabic: مرحبا بالعالم. Devanagari: नमस्ते दुनिया क्ष. Hangul: 안녕하세요 세계. CJK: 你好，世界。こんにちは。 Thai: สวัสดี
 leading blank, I'll we've IT'S, trailing blanks   """

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
USER_DEFINED = ("<tool>", "</tool>")


@dataclass(frozen=True)
class Pair:
    """One vocabulary twice: `fields` as a GGUF file would spell it, `original` as it was trained."""

    fields: dict[str, object]
    original: tokenizers.Tokenizer


def pattern_of(pre: str) -> str | None:
    """The pattern that transformers cuts by, None for GPT-2's built-in one."""
    if pre in ("qwen2", "deepseek-r1-qwen"):
        from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

        return PRETOKENIZE_REGEX
    if pre.startswith("llama"):
        from transformers.convert_slow_tokenizer import TikTokenConverter

        return inspect.signature(TikTokenConverter.__init__).parameters["pattern"].default
    return None


def train_byte_level(pre: str) -> Pair:
    original = tokenizers.Tokenizer(models.BPE())
    pattern = pattern_of(pre)
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    cut = [] if pattern is None else [pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")]
    original.pre_tokenizer = pre_tokenizers.Sequence([*cut, spell])
    original.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    original.train_from_iterator([SAMPLE, SAMPLE.upper()], trainer)
    original.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in CONTROL])
    original.add_tokens([AddedToken(token, normalized=False, special=False) for token in USER_DEFINED])
    tokens = sorted(original.get_vocab(), key=original.get_vocab().__getitem__)
    merges = [" ".join(merge) for merge in json.loads(original.to_str())["model"]["merges"]]
    fields = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if t in CONTROL else 4 if t in USER_DEFINED else 1 for t in tokens],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": tokens.index("<|endoftext|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.padding_token_id": tokens.index("<|endoftext|>"),
        "tokenizer.ggml.add_bos_token": False,
    }
    return Pair(fields, original)


def sentencepiece_fields(architecture: str = "llama") -> dict[str, object]:
    """A vocabulary of pieces ranked by score, trained without digits, Thai or emoji: those must come out as bytes."""
    training = tokenizers.Tokenizer(models.BPE())
    training.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    text = "".join(c for c in SAMPLE if not c.isdigit() and ord(c) < 0x0E00)
    training.train_from_iterator([text] * 2, trainers.BpeTrainer(vocab_size=420, show_progress=False))
    pieces = sorted(training.get_vocab(), key=training.get_vocab().__getitem__)
    joined = [p for p in pieces if len(p) > 1]
    single = [p for p in pieces if len(p) == 1]
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [2, 3, 3, *[6] * 256, *[1] * len(pieces), 3, 4]
    scores = [*[0.0] * len(first), *(-float(i) for i in range(len(pieces))), 0.0, 0.0]
    return {
        "general.architecture": architecture,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*first, *joined, *single, "<|turn|>", "<note>"],
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
    }


@pytest.fixture(scope="session")
def sample() -> str:
    return SAMPLE


@pytest.fixture(scope="session")
def byte_level_pair() -> Callable[[str], Pair]:
    pairs: dict[str, Pair] = {}

    def pair_of(pre: str) -> Pair:
        if pre not in pairs:
            pairs[pre] = train_byte_level(pre)
        return pairs[pre]

    return pair_of


@pytest.fixture(scope="session")
def spm_fields() -> Callable[..., dict[str, object]]:
    return sentencepiece_fields


@pytest.fixture(scope="session")
def byte_level(byte_level_pair) -> Tokenizer:
    return from_gguf(byte_level_pair("qwen2").fields)


@pytest.fixture(scope="session")
def spm(spm_fields) -> Tokenizer:
    return from_gguf(spm_fields())


@pytest.fixture(params=["byte_level", "spm"])
def tokenizer(request) -> Iterator[Tokenizer]:
    return request.getfixturevalue(request.param)
