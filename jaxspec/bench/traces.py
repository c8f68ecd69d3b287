"""Records from traces of a target and a draft model: JSON lines with the text, and where the draft agreed with it.

    {"id", "category", "prompt_ids", "out_ids", "match": [0 or 1 a token], "conf": [a token], "top1": [a token]}

match: whether the draft model's likeliest token after the true text is the text's next one; conf: its probability;
top1: the target's largest probability where it made the token.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.bench.record import Pool, Record, run_length
from jaxspec.contracts import FREE, MODEL

POOL = Pool(("none", "lookup", "lm"), (FREE, FREE, MODEL), (False, False, True))
LOOKUP, LM = 1, 2

MATCH, FREE_DRAFTS, MODEL_DRAFTS = 6, 16, 8
"""Longest suffix looked up, drafts of the lookup and of the model."""


def read_traces(path: str | Path, *, limit: int | None = None) -> list[Record]:
    """Every line as a record.

    Args:
        limit: tokens that were asked for, which caps drafts near the end; where None nobody knows where a text ends.

    Raises:
        ValueError: no such file, or a line that is no trace.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"cannot read the traces {path}: {error.strerror}") from None
    records = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                records.append(as_record(json.loads(line), limit=limit))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {number} is no trace ({error})") from None
    if not records:
        raise ValueError(f"{path} holds no traces")
    return records


def as_record(trace: Mapping[str, Any], *, limit: int | None = None) -> Record:
    """One trace; what it does not tell of the target's certainty is the least that `top1` leaves possible."""
    prompt, ids = (np.asarray(trace[name], np.int32) for name in ("prompt_ids", "out_ids"))
    agreed = np.asarray(trace["match"], np.int32)
    sure, top1 = (np.asarray(trace[name], np.float32) for name in ("conf", "top1"))
    count = len(ids)
    offered, right, match = (np.zeros((count, 3), np.int32) for _ in range(3))
    confidence = np.ones((count, 3, FREE_DRAFTS), np.float32)
    for at, (drafts, matched, share) in enumerate(lookups(prompt, ids)):
        offered[at, LOOKUP], match[at, LOOKUP] = len(drafts), matched
        confidence[at, LOOKUP] = share
        right[at, LOOKUP] = run_length(drafts, len(drafts), ids[at:])
        law = sure[at : at + MODEL_DRAFTS]
        confidence[at, LM, : len(law)] = law
    offered[:, LM] = MODEL_DRAFTS
    right[:, LM] = np.minimum(_runs(agreed), MODEL_DRAFTS)
    top = np.concatenate([np.zeros(1, np.float32), top1[:-1]])
    seen = np.arange(count) > 0
    return Record(
        pool=POOL,
        offered=offered,
        right=right,
        match=match,
        confidence=confidence,
        top=top,
        margin=np.maximum(2 * top - 1, 0),
        entropy=np.where(seen, -np.log(np.maximum(top, 1e-6)), 0).astype(np.float32),
        domain=np.full(count, -1, np.int32),
        ids=ids,
        prompt_length=len(prompt),
        limit=np.iinfo(np.int32).max // 2 if limit is None else max(limit, count),
        category=str(trace["category"]),
        name=str(trace["id"]),
    )


def lookups(
    prompt: np.ndarray, ids: np.ndarray, *, most: int = FREE_DRAFTS, min_match: int = 1, loops: bool = False
) -> Sequence[tuple[np.ndarray, int, float]]:
    """Drafts before each token of `ids`, by the most recent of the longest earlier matches (up to MATCH tokens count as
    longer), the length of that match, and the share of the longest ones that went on as it did,
    with one more that did not.

    Args:
        loops: past the text's end the drafts repeat, as those of `jaxspec.drafts.lookup`; where False they end there.
    """
    text = np.concatenate([prompt, ids])
    length = np.zeros(len(text), np.int64)  # [j]: how long a suffix of the text so far also ends at j
    found = []
    for known in range(1, len(text)):
        back = np.roll(length, 1)
        back[0] = 0
        length = np.where(text == text[known - 1], back + 1, 0)
        if known >= len(prompt):
            earlier = np.minimum(length[: known - 1], MATCH)
            matched = int(earlier.max(initial=0))
            if matched < max(min_match, 1):
                found.append((text[:0], 0, 1.0))
                continue
            ends = np.flatnonzero(earlier == matched)
            end = int(ends[-1])
            share = float(np.sum(text[ends + 1] == text[end + 1]) / (len(ends) + 1))
            at = end + 1 + (np.arange(most) % (known - 1 - end) if loops else np.arange(min(most, known - 1 - end)))
            found.append((text[at], matched, share))
    return found


def _runs(agreed: np.ndarray) -> np.ndarray:
    """How many ones begin at each place.   1 1 0 1 -> 2 1 0 1"""
    runs = np.zeros(len(agreed) + 1, np.int32)
    for at in range(len(agreed) - 1, -1, -1):
        runs[at] = runs[at + 1] + 1 if agreed[at] else 0
    return runs[:-1]


__all__ = ["as_record", "lookups", "read_traces"]
