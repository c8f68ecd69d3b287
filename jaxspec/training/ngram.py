"""The n-gram table: counts of token sequences in a corpus, the most useful ones kept within a budget of bytes.

Counting goes from short to long. A sequence of n + 1 tokens is a frequent sequence of n and what follows it, so each
order sorts pairs of numbers, and only where the order below was frequent:

    tokens   a b c a b d            order 2: (a, b) 2 times, (b, c), (b, d), (c, a)
    order 3  only at the two places of (a, b):  ab -> c, d

About 60 bytes of memory a token of the corpus.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from jaxspec.checkpoint.staging import new_folder
from jaxspec.drafts.ngram import ARRAYS, FORMAT, NAME, RECORD, keys, load_ngram, vocabulary_digest
from jaxspec.text import Tokenizer
from jaxspec.training.card import CARD, engine_table
from jaxspec.training.ngram_corpus import expand, read_corpus
from jaxspec.typing import Params

SLOTS = 8
"""Contexts a bucket."""

LEAST = 1024
"""Contexts below which a table is not worth its name."""

FILLED = 0.6
"""Share of the slots that are used where the budget leaves room: few buckets overflow then."""

Told = Callable[[int, int, int], None]

Judge = Callable[[Params], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Entries:
    """Contexts of one length and what follows them most often."""

    context: np.ndarray  # int32 [M, C], the most recent token last
    token: np.ndarray  # int32 [M]; of equally frequent ones the smallest id
    count: np.ndarray  # int64 [M], occurrences of the context before any token
    hits: np.ndarray  # int64 [M], before this one

    def kept(self, which: np.ndarray) -> "Entries":
        """Those that are marked, bool [M]."""
        return Entries(self.context[which], self.token[which], self.count[which], self.hits[which])


def build_ngram(
    files: Sequence[str | Path],
    tokenizer: Tokenizer,
    out: str | Path,
    *,
    budget_mb: float = 8.0,
    min_count: int = 2,
    min_probability: float = 0.25,
    orders: tuple[int, int] = (2, 5),
    overwrite: bool = False,
    command: str | None = None,
    note: str | None = None,
    judge: Judge | None = None,
    told: Told = lambda done, total, tokens: None,
) -> dict[str, Any]:
    """Build a table from corpus files and write it as an artifact, whole or not at all; its record.

    Args:
        files: .txt, .jsonl, shards of `generate_corpus` (.npz), or folders of shards.
        tokenizer: the target's.
        out: the artifact's folder.
        budget_mb: bytes of the table's arrays at the most, in millions.
        min_count: occurrences of a sequence that is kept, at the least.
        min_probability: of its last token after the others, at the least; the source's threshold should not be lower.
        orders: lengths of the sequences, the next token included, from and to.
        command: that builds it, for the card.
        note: the data and its licences, for the card.
        judge: given the arrays (`jaxspec.drafts.ngram.load_ngram`), says what the engine accepted on held-out prompts
            (`jaxspec.training.validate.Validator`), for record and card.
        told: after every file and order (steps done, steps in all, tokens so far).

    Raises:
        ValueError: options out of range, a file that is empty, not UTF-8 or of another vocabulary, a taken `out`.
    """
    check_options(budget_mb, min_count, min_probability, orders, vocab_size=tokenizer.vocab_size)
    each = list(expand(files))
    with new_folder(Path(out), overwrite=overwrite, marker=RECORD) as folder:
        steps, texts, tokens = len(each) + orders[1] - 1, [], 0
        for number, file in enumerate(each, 1):
            texts.append(read_corpus(file, tokenizer))
            tokens += int(np.count_nonzero(texts[-1].tokens >= 0))
            told(number, steps, tokens)
        joined = np.concatenate([part for text in texts for part in (text.tokens, np.full(1, -1, np.int32))])
        counted = lambda done: told(len(each) + done, steps, tokens)  # noqa: E731
        found = count_sequences(joined, orders, min_count=min_count, min_probability=min_probability, told=counted)
        table = fill(found, budget=round(budget_mb * 1e6), vocab_size=tokenizer.vocab_size)
        record = {
            "kind": NAME,
            "format": FORMAT,
            "vocab_size": tokenizer.vocab_size,
            "vocabulary": vocabulary_digest(tokenizer),
            "options": {"budget_mb": budget_mb, "min_count": min_count, "min_probability": min_probability}
            | {"orders": list(orders)},
            "mb": round(sum(leaf.nbytes for leaf in table.values()) / 1e6, 3),
            "tokens": tokens,
            "corpus": [{"name": text.name, "sha256": text.sha256} for text in texts],
            "candidates": {str(entries.context.shape[1] + 1): len(entries.token) for entries in found},
            "entries": {str(length + 2): int(n) for length, n in enumerate(table["entries"]) if n},
        }
        record = _write(folder, table, record)
        if judge is not None:
            record = _record(folder, record | {"validation": {"engine": judge(load_ngram(folder, tokenizer))}})
        (folder / CARD).write_text(_card(record, command, note), encoding="utf-8")
        return record


def _card(record: Mapping[str, Any], command: str | None, note: str | None) -> str:
    """What the table was made of, and how, for people to read."""
    options, names = record["options"], ", ".join(text["name"] for text in record["corpus"])
    low, high = options["orders"]
    kept = "; ".join(f"{n:,} of {record['candidates'][order]:,} of {order}" for order, n in record["entries"].items())
    facts = {
        "data": f"{note or 'Licences: not given.'} {names}",
        "tokens of the corpus": f"{record['tokens']:,}",
        "sequences": f"of {low} to {high} tokens, seen {options['min_count']} times or more, the last token with "
        f"probability {options['min_probability']} or more after the others",
        "kept, the most useful": kept,
        "megabytes": record["mb"],
        "vocabulary (SHA-256)": record["vocabulary"],
    }
    head = ["# A table of n-grams", "", *(["```bash", command, "```", ""] if command else []), "| | |", "|---|---|"]
    lines = [*head, *(f"| {name} | {fact} |" for name, fact in facts.items()), ""]
    return "\n".join([*lines, *engine_table(record.get("validation", {}))])


def check_options(
    budget_mb: float, min_count: int, min_probability: float, orders: tuple[int, int], *, vocab_size: int
) -> None:
    """Refuse what no table can be built with."""
    low, high = orders
    if not 2 <= low <= high <= 8:
        raise ValueError(f"orders are {low} to {high}; give two numbers from 2 to 8, the smaller one first")
    if min_count < 1:
        raise ValueError(f"min_count is {min_count}; give 1 or more")
    if not 0 <= min_probability <= 1:
        raise ValueError(f"min_probability is {min_probability}; give 0 to 1")
    least = LEAST * slot_bytes(vocab_size)
    if not budget_mb * 1e6 >= least:
        raise ValueError(
            f"a budget of {budget_mb} MB is too small; a table takes {least / 1e6:.3f} MB at the least, 8 is usual"
        )


def slot_bytes(vocab_size: int) -> int:
    """Bytes of one context: 32 bits of hash, the token, two counts."""
    return 4 + _token_type(vocab_size).itemsize + 2 + 2


def _token_type(vocab_size: int) -> np.dtype:
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def count_sequences(
    tokens: np.ndarray,
    orders: tuple[int, int],
    *,
    min_count: int = 1,
    min_probability: float = 0.0,
    told: Callable[[int], None] = lambda done: None,
) -> list[Entries]:
    """The contexts of each order, shortest first, whose best next token follows them often enough.

    Args:
        tokens: int32 [N], -1 between documents.
        orders: of the sequences, the next token included, from and to.
        min_count, min_probability: how often at the least.
        told: orders counted so far.
    """
    at = np.flatnonzero(tokens >= 0)
    context, found = tokens[at].astype(np.int64), []
    for order in range(2, orders[1] + 1):
        inside = at + order - 1 < len(tokens)
        at, context = at[inside], context[inside]
        follows = tokens[at + order - 1]
        at, pairs = at[follows >= 0], (context[follows >= 0] << 32) | follows[follows >= 0]
        place = np.argsort(pairs)
        pairs = pairs[place]
        starts = _runs(pairs)  # where each sequence of `order` tokens begins
        counts = np.diff(starts, append=len(pairs))
        if order >= orders[0] and len(pairs):
            best = _best(tokens, order, at[place[starts]], pairs[starts], counts)
            found.append(best.kept((best.hits >= min_count) & (best.hits >= min_probability * best.count)))
        often = np.repeat(counts >= min_count, counts)
        context = np.repeat(np.arange(len(starts)), counts)[often]
        at = at[place[often]]
        told(order - 1)
    return found


def _runs(values: np.ndarray) -> np.ndarray:
    """Where runs of equal neighbours begin."""
    return np.flatnonzero(np.diff(values, prepend=values[:1] - 1))


def _best(tokens: np.ndarray, order: int, at: np.ndarray, pairs: np.ndarray, counts: np.ndarray) -> Entries:
    """Of all sequences of an order, sorted: each context's most frequent one."""
    first = _runs(pairs >> 32)
    total, best = np.add.reduceat(counts, first), np.maximum.reduceat(counts, first)
    whose = np.repeat(np.arange(len(first)), np.diff(first, append=len(pairs)))
    most = np.flatnonzero(counts == best[whose])
    most = most[_runs(whose[most])]  # of equals the first, which has the smallest id
    context = tokens[at[most][:, None] + np.arange(order - 1)]
    return Entries(context, (pairs[most] & 0xFFFFFFFF).astype(np.int32), total, best)


def fill(found: Sequence[Entries], *, budget: int, vocab_size: int) -> dict[str, np.ndarray]:
    """The table of the entries that are worth most, `budget` bytes at the most.

    An entry's worth is how often it would have been right: its context's count times the probability of its token. Each
    bucket keeps the best of those that fall into it.

    Raises:
        ValueError: nothing to fill it with.
    """
    total = sum(len(entries.token) for entries in found)
    if not total:
        raise ValueError("no sequence of the corpus occurs often enough; give more text, or a smaller min_count")
    lengths = np.repeat([e.context.shape[1] for e in found], [len(e.token) for e in found])
    place, check = (np.concatenate(parts) for parts in zip(*(_last_keys(e.context) for e in found), strict=True))
    token, count, hits = (np.concatenate([getattr(e, name) for e in found]) for name in ("token", "count", "hits"))
    buckets = max(1, min((budget - 64) // (SLOTS * slot_bytes(vocab_size)), int(total / (SLOTS * FILLED)) + 1))
    bucket = place % np.uint32(buckets)
    order = np.lexsort((place, check, lengths, -hits, bucket))
    told_apart = bucket[order].astype(np.uint64) << np.uint64(32) | check[order]
    order = order[np.sort(np.unique(told_apart, return_index=True)[1])]  # of two that look alike the better one
    begins = _runs(bucket[order].astype(np.int64))
    rank = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    kept, slot = order[rank < SLOTS], rank[rank < SLOTS]
    scale = np.minimum(1.0, 65535 / count[kept])  # both, so that their ratio stays
    shape, at = (buckets, SLOTS), (bucket[kept], slot)
    table = {
        "check": _scatter(shape, at, check[kept], np.uint32),
        "next": _scatter(shape, at, token[kept], _token_type(vocab_size)),
        "count": _scatter(shape, at, np.round(count[kept] * scale), np.uint16),
        "hits": _scatter(shape, at, np.maximum(np.round(hits[kept] * scale), 1), np.uint16),
    }
    longest = max(e.context.shape[1] for e in found)
    return table | {"entries": np.bincount(lengths[kept], minlength=longest + 1)[1:].astype(np.uint32)}


def _last_keys(context: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    place, check = keys(context.astype(np.uint32))
    return place[:, -1], check[:, -1]


def _scatter(shape: tuple[int, int], at: tuple[np.ndarray, ...], values: np.ndarray, dtype: Any) -> np.ndarray:
    out = np.zeros(shape, dtype)
    out[at] = values
    return out


def _write(folder: Path, table: Mapping[str, np.ndarray], record: dict[str, Any]) -> dict[str, Any]:
    """Write both files into a fresh folder; the record, which has the SHA-256 of the arrays' file."""
    content = safetensors.numpy.save(dict(table))
    (folder / ARRAYS).write_bytes(content)
    return _record(folder, record | {"sha256": hashlib.sha256(content).hexdigest()})


def _record(folder: Path, record: dict[str, Any]) -> dict[str, Any]:
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return record
