"""Text becomes documents, half of them chats, and batches are stretches of it that a seed decides."""

import numpy as np
import pytest

from jaxspec.training import read_text, split_off, tokenize, train_tokenizer, windows
from jaxspec.training.data import PASSAGES

PASSAGE = "passage number {} about foxes and dogs"
TEXT = "\n\n".join(PASSAGE.format(i) for i in range(3 * PASSAGES))
SOURCES = [np.arange(100, dtype=np.int32), np.arange(1000, 1050, dtype=np.int32)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([TEXT * 3], size=280)


def test_all_text_is_there_and_every_second_document_is_a_chat(tokenizer):
    documents = tokenizer.decode(tokenize(tokenizer, TEXT).tolist(), skip_special=False).split("<|endoftext|>")
    assert documents.pop() == ""
    assert len(documents) == 3
    for number, document in enumerate(documents):
        chat = number % 2 == 1
        assert ("<|im_start|>assistant\n" in document) == chat
        assert document.count("<|im_end|>") == (PASSAGES if chat else 0)
        found = range(number * PASSAGES, (number + 1) * PASSAGES)
        assert all(PASSAGE.format(i) in document for i in found)


def test_split_off_loses_nothing():
    kept, held = split_off(SOURCES[0], 0.1)
    assert (len(kept), len(held)) == (90, 10)
    assert np.array_equal(np.concatenate([kept, held]), SOURCES[0])


def test_rows_are_stretches_of_each_source_in_turn():
    batches = list(windows(SOURCES, rows=3, width=9, steps=5, seed=0))
    assert len(batches) == 5
    rows = np.concatenate(batches)
    assert rows.shape == (15, 9)
    assert rows.dtype == np.int32
    assert np.all(np.diff(rows) == 1)
    assert np.array_equal(rows[:, 0] >= 1000, np.arange(15) % 2 == 1)


def test_a_window_may_be_as_long_as_its_source():
    (batch,) = windows([SOURCES[1]], rows=2, width=50, steps=1, seed=0)
    assert np.array_equal(batch, np.stack([SOURCES[1]] * 2))


def test_the_seed_decides():
    first, same, other = (list(windows(SOURCES, rows=2, width=9, steps=4, seed=seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("sources", [[], SOURCES])
def test_a_source_that_is_too_short_is_refused(sources):
    with pytest.raises(ValueError, match="windows of 51 need"):
        next(windows(sources, rows=1, width=51, steps=1, seed=0))


def test_text_is_read_with_plain_line_ends(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\n\r\ntwo")
    assert read_text(tmp_path / "a.txt") == "one\n\ntwo"


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one \xff")
    with pytest.raises(ValueError, match=r"a\.txt is not UTF-8"):
        read_text(tmp_path / "a.txt")
    with pytest.raises(ValueError, match=r"cannot read .*b\.txt: No such file"):
        read_text(tmp_path / "b.txt")
