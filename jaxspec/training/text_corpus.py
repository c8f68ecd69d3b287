"""Anyone's own text as a corpus: tokenised with the target's tokenizer, in the shards that answers are written in."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.text import Tokenizer
from jaxspec.training.claim import claim
from jaxspec.training.corpus import SETTINGS, write_shard
from jaxspec.training.data import read_text

LONGEST = 512
"""Tokens of a document; longer text is cut into several."""

SHARD = 256
"""Documents a file."""


def text_corpus(
    files: Sequence[str | Path], tokenizer: Tokenizer, out: str | Path, *, target: str, seed: int = 0
) -> list[Path]:
    """Shards of the files' documents in random order, no token of them a prompt's but those of a record's prompt.

    Args:
        files: .txt, plain text; .jsonl, a record a line with "text", or "messages", or "prompt" and "answer".
        target: fingerprint of the target's weights.

    Raises:
        ValueError: a file that is missing, not UTF-8, malformed or without text, or a folder with another corpus.
    """
    folder, digest = Path(out), hashlib.sha256()
    documents: list[tuple[list[int], int]] = []
    for file in files:
        text = read_text(file)
        digest.update(text.encode())
        fresh = [each for each in _documents(file, text, tokenizer) if len(each[0]) > 1]
        if not fresh:
            raise ValueError(f"{file} holds no text; give at least a sentence")
        documents += fresh
    settings = {"target": target, "text": [Path(file).name for file in files], "sha256": digest.hexdigest()}
    claim(folder / SETTINGS, settings | {"seed": seed, "count": len(documents)}, what="a corpus")
    order = np.random.default_rng(seed).permutation(len(documents)).tolist()
    shards = []
    for number, start in enumerate(range(0, len(order), SHARD)):
        shards.append(folder / f"shard-{number:05d}.npz")
        part = order[start : start + SHARD]
        if not shards[-1].exists():
            write_shard(shards[-1], [documents[i][0] for i in part], [documents[i][1] for i in part], part)
    return shards


def _documents(file: str | Path, text: str, tokenizer: Tokenizer) -> Iterator[tuple[list[int], int]]:
    """Token ids of each document, and how many of them are a prompt's."""
    if Path(file).suffix != ".jsonl":
        ids = tokenizer.encode(text, special=False)
        yield from ((ids[start : start + LONGEST], 0) for start in range(0, len(ids), LONGEST))
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            ids, prompt = _record(line, f"{file}, line {number}", tokenizer)
            yield ids[:LONGEST], min(prompt, LONGEST)


def _record(line: str, where: str, tokenizer: Tokenizer) -> tuple[list[int], int]:
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{where} is not JSON ({error}); write one object a line, {{"text": "..."}}') from None
    fields = record if isinstance(record, dict) else {}
    text, messages, prompt, answer = (fields.get(name) for name in ("text", "messages", "prompt", "answer"))
    if isinstance(text, str):
        return tokenizer.encode(text, special=False), 0
    if isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages):
        return tokenizer.chat(messages, generate=False), 0
    if isinstance(prompt, str) and isinstance(answer, str):
        chat = tokenizer.chat_template is not None
        asked = tokenizer.chat([{"role": "user", "content": prompt}]) if chat else tokenizer.encode(prompt)
        return [*asked, *tokenizer.encode(answer, special=False), *tokenizer.eos_ids[:1]], len(asked)
    raise ValueError(f'{where} has no text; write {{"text": "..."}}, {{"messages": [...]}} or {{"prompt", "answer"}}')
