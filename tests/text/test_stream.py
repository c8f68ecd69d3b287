"""Streams: in whatever portions ids come, the text is that of all ids at once, and never half a character."""

import random

import pytest

from jaxspec.text import Stream

TEXTS = [
    "😀😀👩‍👩‍👧 🇫🇷",
    " leading",
    "  two blanks ",
    "नमस्ते दुनिया",
    "안녕하세요 你好",
    "a\n\n b",
    "<|im_end|> x<|im_end|>",
    "�é",
]


def portions(ids, rng):
    at = 0
    while at < len(ids):
        size = rng.randint(0, 4)
        yield ids[at : at + size]
        at += size


def streamed(tokenizer, ids, rng, **options):
    stream = Stream(tokenizer, **options)
    return [*(stream.push(portion) for portion in portions(ids, rng)), stream.finish()]


@pytest.mark.parametrize("skip_special", [True, False])
def test_pieces_join_to_the_text_of_all_ids(tokenizer, sample, skip_special):
    rng = random.Random(1)
    for text in [sample, *TEXTS]:
        ids = tokenizer.encode(text)
        whole = tokenizer.decode(ids, skip_special=skip_special)
        for _ in range(20):
            assert "".join(streamed(tokenizer, ids, rng, skip_special=skip_special)) == whole


@pytest.mark.parametrize("skip_special", [True, False])
def test_pieces_join_for_any_ids_a_model_may_emit(tokenizer, skip_special):
    rng = random.Random(2)
    for _ in range(400):
        ids = [rng.randrange(tokenizer.vocab_size + 3) for _ in range(rng.randint(1, 12))]
        pieces = streamed(tokenizer, ids, rng, skip_special=skip_special)
        assert "".join(pieces) == tokenizer.decode(ids, skip_special=skip_special), ids


def test_no_piece_shows_half_a_character(tokenizer, sample):
    rng = random.Random(3)
    for text in [sample, *TEXTS[:-1]]:
        ids = tokenizer.encode(text)
        assert all("\ufffd" not in piece for piece in streamed(tokenizer, ids, rng))


def test_text_is_shown_as_soon_as_it_is_certain(byte_level):
    stream = Stream(byte_level)
    grin = byte_level.encode("😀", special=False)
    assert len(grin) > 1
    assert stream.push(byte_level.encode("abc", special=False)) == "abc"
    assert [stream.push([i]) for i in grin] == [*[""] * (len(grin) - 1), "😀"]
    assert stream.push(grin[:1]) == ""
    assert stream.finish() == byte_level.decode(grin[:1])


def test_a_leading_blank_stays_after_special_tokens_and_between_pushes(spm):
    ids = spm.encode("is the", special=False)
    stream = Stream(spm)
    assert stream.push([spm.bos_id]) + stream.push(ids[:1]) == spm.decode(ids[:1])
    shown = [stream.push([i]) for i in ids[1:]]
    assert any(piece.startswith(" ") for piece in shown)


def test_a_finished_stream_starts_afresh(tokenizer):
    stream, ids = Stream(tokenizer), tokenizer.encode("is the")
    first = stream.push(ids) + stream.finish()
    assert stream.push(ids) + stream.finish() == first == "is the"


def test_decoding_each_id_alone_is_rejected(tokenizer, sample):
    """Negative control: the property above must fail for the naive way."""
    ids = tokenizer.encode(sample)
    naive = [tokenizer.decode([i]) for i in ids]
    assert "".join(naive) != tokenizer.decode(ids)
    assert any("\ufffd" in piece for piece in naive)
