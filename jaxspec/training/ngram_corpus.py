"""Corpus files as token ids for counting: text, JSON lines, and shards of the target's own answers."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from jaxspec.text import Tokenizer
from jaxspec.training.corpus import read_shard
from jaxspec.training.data import read_text

PIECE = 1 << 16
"""Characters that are tokenised at once, or a paragraph more."""

FIELDS = ("text", "prompt", "question", "completion", "response", "answer")
"""Of a .jsonl record; every one that is there is a text of its own."""

LEAD = 8
"""Tokens of a prompt that are taken with its answer: the context of the answer's first tokens."""


@dataclasses.dataclass(frozen=True)
class Text:
    """A corpus file as token ids."""

    name: str
    sha256: str
    tokens: np.ndarray  # int32, -1 between documents


def expand(files: Sequence[str | Path]) -> Iterator[Path]:
    """The files, and in place of a folder its shards. ValueError for a folder without any."""
    for file in map(Path, files):
        shards = sorted(file.glob("*.npz")) if file.is_dir() else [file]
        if not shards:
            raise ValueError(f"{file} is a folder without shards (.npz); give one of generate_corpus.py, or a file")
        yield from shards


def read_corpus(file: Path, tokenizer: Tokenizer) -> Text:
    """A corpus file as token ids.

    Of a shard the answers are taken, and of each prompt the last tokens, which are the context of the answer's first.

    Raises:
        ValueError: a file that cannot be read, is not UTF-8, malformed, empty, or has ids outside the vocabulary.
    """
    if file.suffix == ".npz":
        shard = read_shard(file)
        documents = [row[max(0, prompt - LEAD) :] for row, prompt in shard.rows()]
    elif file.suffix == ".jsonl":
        lines = enumerate(read_text(file).split("\n"), 1)
        texts = (text for number, line in lines for text in _texts(f"{file}, line {number}", line))
        documents = [np.asarray(tokenizer.encode(text, special=False), np.int32) for text in texts]
    else:
        pieces = [np.asarray(tokenizer.encode(p, special=False), np.int32) for p in _pieces(read_text(file))]
        documents = [np.concatenate(pieces)] if pieces else []
    documents = [document for document in documents if len(document)]
    if not documents:
        raise ValueError(f"{file} holds no text; give a file with some")
    extremes = [int(edge) for document in documents for edge in (document.min(), document.max())]
    if wrong := [edge for edge in extremes if not 0 <= edge < tokenizer.vocab_size]:
        raise ValueError(
            f"{file} has token id {wrong[0]}, ids of this target are 0 to {tokenizer.vocab_size - 1}; "
            "it was tokenised with another vocabulary, so generate it with this target"
        )
    joined = np.concatenate([part for document in documents for part in (np.full(1, -1, np.int32), document)])[1:]
    with open(file, "rb") as stream:
        return Text(file.name, hashlib.file_digest(stream, "sha256").hexdigest(), joined.astype(np.int32))


def _pieces(text: str) -> Iterator[str]:
    """A text cut at blank lines, PIECE characters or more each: a whole book at once takes a hundred bytes a token."""
    start = 0
    while start < len(text):
        blank = text.find("\n\n", start + PIECE)
        end = len(text) if blank < 0 else blank + 2
        yield text[start:end]
        start = end


def _texts(where: str, line: str) -> list[str]:
    """The texts of one line of a .jsonl file."""
    if not line.strip():
        return []
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{where} is not JSON ({error}); write one object a line, {{"text": ..}}') from None
    fields = record if isinstance(record, dict) else {}
    turns = [turn for name in ("turns", "messages") if isinstance(fields.get(name), list) for turn in fields[name]]
    texts = [text for text in (*map(fields.get, FIELDS), *map(_said, turns)) if isinstance(text, str)]
    if not texts:
        raise ValueError(f"{where} has no text; write one of {', '.join(FIELDS)}, turns or messages")
    return texts


def _said(turn: object) -> object:
    """What was said in a turn, written {"content": text}, [speaker, text] or text."""
    if isinstance(turn, dict):
        return turn.get("content")
    return turn[-1] if isinstance(turn, list) and turn else turn
