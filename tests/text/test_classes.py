"""Every id has the class of its text, by hand for some and by rules for all."""

import unicodedata

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from jaxspec.text import Tokenizer
from jaxspec.text.classes import BLANK, CODE, DIGITS, LATIN, NAMES, OTHER, PUNCTUATION, UNKNOWN, class_of, token_classes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the", LATIN), (" the", LATIN), ("naïve", LATIN), ("_id", LATIN), ("x1", LATIN), ("'ll", LATIN),
        ("42", DIGITS), (" 7", DIGITS), ("3.", DIGITS), ("٣", DIGITS),
        (".", PUNCTUATION), (" —", PUNCTUATION), ("?!", PUNCTUATION), ("“", PUNCTUATION), (")", PUNCTUATION),
        ("{", CODE), (" ==", CODE), ("();", CODE), ("->", CODE), ("):", CODE), ("\n}", CODE), ("#", CODE),
        (" ", BLANK), ("\n\n", BLANK), ("\t", BLANK), ("    ", BLANK),
        ("дом", OTHER), ("中文", OTHER), (" שלום", OTHER), ("\ufffd", OTHER), ("\x00", OTHER),
    ],
)  # fmt: skip
def test_pieces_by_hand(text, expected):
    assert NAMES[class_of(text)] == NAMES[expected]


def byte_level() -> Tokenizer:
    """A vocabulary of bytes, some words and one special token, with a hole at its end."""
    spelled = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["Ġthe", "return", "42", "()", "Ċ", "ĠĠ", "==", "Ð´"]
    vocab = {token: i for i, token in enumerate(dict.fromkeys([*spelled, *words]))}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken("<|end|>", special=True)])
    return Tokenizer(backend, {})


def test_every_id_of_a_vocabulary_has_its_class():
    tokenizer = byte_level()
    table, vocabulary = token_classes(tokenizer), tokenizer.vocabulary()
    assert table.dtype == np.int8
    assert table.shape == (tokenizer.vocab_size,)
    expected = {
        "Ġthe": LATIN, "return": LATIN, "42": DIGITS, "()": CODE, "Ċ": BLANK, "ĠĠ": BLANK, "==": CODE, "Ð´": OTHER,
        "a": LATIN, "0": DIGITS, "{": CODE, ".": PUNCTUATION, "Ġ": BLANK, "Ð": OTHER, "<|end|>": UNKNOWN,
    }  # fmt: skip
    for token, klass in expected.items():
        assert table[vocabulary.index(token)] == klass, token
    assert set(table.tolist()) == {UNKNOWN, *range(6)}
    ascii_ids = [i for i, token in enumerate(vocabulary) if len(token) == 1 and token.isascii()]
    for index in ascii_ids:
        kind = unicodedata.category(vocabulary[index])[0]
        assert (table[index] in (LATIN, OTHER)) == (kind == "L"), vocabulary[index]


def test_a_lone_blank_of_sentencepiece_is_a_blank():
    backend = tokenizers.Tokenizer(models.Unigram([("▁", -1.0), ("▁the", -2.0), ("the", -2.5)], unk_id=None))
    backend.decoder = decoders.Metaspace()
    assert token_classes(Tokenizer(backend, {})).tolist() == [BLANK, LATIN, LATIN]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_ids_that_only_the_model_has_are_unknown_and_those_it_lacks_left_out(size):
    backend = tokenizers.Tokenizer(models.Unigram([("▁", -1.0), ("▁the", -2.0), ("the", -2.5)], unk_id=None))
    backend.decoder = decoders.Metaspace()
    table = token_classes(Tokenizer(backend, {}), size)
    assert table.tolist() == [BLANK, LATIN, LATIN, UNKNOWN, UNKNOWN][:size]
    assert table.dtype == np.int8
