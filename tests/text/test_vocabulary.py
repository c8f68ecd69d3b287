"""Vocabularies are compared token by token; only filler at an end or in a hole may differ."""

import pytest

from jaxspec.text import compare_vocabularies, from_gguf

WORDS = ["the", "of", "Paris", "and"]


def test_the_first_differing_id_is_named_with_both_tokens():
    with pytest.raises(ValueError, match="id 2 is 'Paris' here and 'river' there"):
        compare_vocabularies(WORDS, ["the", "of", "river", "or"])


@pytest.mark.parametrize(
    ("target", "draft", "shared"),
    [
        (WORDS, WORDS, 4),
        (WORDS, [*WORDS, "[PAD4]", "[PAD5]"], 4),
        ([*WORDS, "[PAD4]"], WORDS, 4),
        ([*WORDS, "[PAD4]", "[PAD5]"], [*WORDS, ""], 4),
        ([*WORDS, "<tool>"], [*WORDS, "[PAD4]"], 4),
        ([*WORDS, "<tool>"], WORDS, 4),
        (["the", "", "Paris"], ["the", "[PAD1]", "Paris"], 3),
    ],
)
def test_padding_may_differ(target, draft, shared):
    assert compare_vocabularies(target, draft) == shared


def test_a_real_token_that_looks_like_padding_elsewhere_is_compared():
    with pytest.raises(ValueError, match="id 1 is 'of' here and '<PAD>' there"):
        compare_vocabularies(WORDS, ["the", "<PAD>", "Paris", "and"])


def test_an_empty_vocabulary_is_refused():
    with pytest.raises(ValueError, match="share no token"):
        compare_vocabularies(WORDS, ["[PAD0]"])


def test_tokenizers_are_compared_by_their_vocabularies(byte_level, byte_level_pair, spm):
    fields = byte_level_pair("qwen2").fields
    tokens = fields["tokenizer.ggml.tokens"]
    padded = {
        **fields,
        "tokenizer.ggml.tokens": [*tokens, f"[PAD{len(tokens)}]"],
        "tokenizer.ggml.token_type": [*fields["tokenizer.ggml.token_type"], 5],
    }
    assert compare_vocabularies(byte_level, from_gguf(padded)) == byte_level.vocab_size
    with pytest.raises(ValueError, match="id 0 is '!' here and '<unk>' there"):
        compare_vocabularies(byte_level, spm)
