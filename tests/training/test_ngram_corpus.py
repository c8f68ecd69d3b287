"""Corpus files of every kind become the tokens that they hold, and what is no corpus of the target is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from jaxspec.text import from_folder
from jaxspec.training import ngram_corpus
from jaxspec.training.ngram_corpus import expand, read_corpus

TINY = Path(__file__).parent.parent.parent / "checkpoints" / "tiny" / "target"
TEXT = "The quick brown fox jumps over the lazy dog.\n\nThe quick brown fox sleeps.\n" * 20


@pytest.fixture(scope="module")
def tokenizer():
    return from_folder(TINY)


def test_every_kind_of_file_is_read(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    got = read_corpus(tmp_path / "a.txt", tokenizer)
    assert got.tokens.tolist() == tokenizer.encode(TEXT, special=False)
    assert (got.name, len(got.sha256)) == ("a.txt", 64)
    records = [
        {"prompt": "Hello there", "answer": "General", "id": "left out"},
        {"turns": [["user", "Hi"], ["system", "Ho"]], "messages": 3},
        {"messages": [{"role": "user", "content": "Why?"}]},
    ]
    (tmp_path / "b.jsonl").write_text("\n\n".join(map(json.dumps, records)))
    texts = ["Hello there", "General", "Hi", "Ho", "Why?"]
    got = read_corpus(tmp_path / "b.jsonl", tokenizer).tokens
    assert got[: np.argmax(got < 0)].tolist() == tokenizer.encode(texts[0], special=False)
    bar = tokenizer.encode("|", special=False)[0]
    assert tokenizer.decode(np.where(got < 0, bar, got).tolist()) == "|".join(texts)


def test_a_long_text_is_tokenised_in_pieces_and_nothing_is_lost(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(ngram_corpus, "PIECE", 100)
    (tmp_path / "a.txt").write_text(TEXT)
    assert tokenizer.decode(read_corpus(tmp_path / "a.txt", tokenizer).tokens.tolist()) == TEXT


def shard(path, rows, prompts):
    lengths = np.int32([len(row) for row in rows])
    np.savez(
        path, tokens=np.concatenate(rows).astype(np.int32), lengths=lengths, prompts=np.int32(prompts), index=lengths
    )
    return path


def test_of_a_shard_the_answers_count_and_the_end_of_the_prompt_before_them(tokenizer, tmp_path):
    row = np.arange(40)
    got = read_corpus(shard(tmp_path / "shard-0.npz", [row, row[:12]], [30, 4]), tokenizer)
    assert got.tokens.tolist() == [*range(22, 40), -1, *range(12)]


@pytest.mark.parametrize("token", [512, -3])
def test_a_shard_of_another_vocabulary_is_refused(tokenizer, tmp_path, token):
    file = shard(tmp_path / "a.npz", [np.arange(41), np.int32([1, 2, token])], [1, 1])
    with pytest.raises(ValueError, match=f"has token id {token}, .* it was tokenised with another vocabulary"):
        read_corpus(file, tokenizer)


def test_a_folder_without_shards_and_a_file_that_is_not_there_are_named(tokenizer, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty is a folder without shards"):
        list(expand([tmp_path / "empty"]))
    with pytest.raises(ValueError, match=r"cannot read .*missing"):
        read_corpus(tmp_path / "missing.txt", tokenizer)
