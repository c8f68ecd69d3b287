"""The target's view of a corpus, computed once: residual streams and the likeliest next tokens of every position."""

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jaxspec.models import LanguageModel
from jaxspec.models.tapped import tapped
from jaxspec.training.claim import claim
from jaxspec.training.corpus import Told, read_shard
from jaxspec.typing import Params

META = "teacher.json"
WIDTHS = (64, 128, 192, 256, 384, 512)
"""Tokens of a row of a pass; documents are cut to the widest."""

BATCH = 2048
"""Tokens of a pass, padding included."""


@dataclasses.dataclass(frozen=True)
class Law:
    """The target's next-token law at every position, by its `top` likeliest tokens."""

    ids: np.ndarray  # int32 [N, K], likeliest first
    log_p: np.ndarray  # float16 [N, K]; the mass they leave is the tail


@dataclasses.dataclass(frozen=True)
class Part:
    """A shard's documents, one after the other: N tokens in R documents; arrays are mapped from disk."""

    tokens: np.ndarray  # int32 [N]
    starts: np.ndarray  # int64 [R + 1], first token of each document
    prompts: np.ndarray  # int32 [R], tokens of each document's prompt
    law: Law
    features: dict[int, np.ndarray]  # after so many layers: bfloat16 [N, D]


def build_teacher(
    model: LanguageModel,
    params: Params,
    shards: Sequence[Path],
    out: str | Path,
    *,
    target: str,
    taps: tuple[int, ...],
    top: int = 24,
    vocab_size: int,
    corpus: str | None = None,
    dtype: str = "float32",
    told: Told = lambda done, total, tokens: None,
) -> list[Path]:
    """Run the target over every shard; the parts' folders. Parts that exist are kept.

    Args:
        shards: files of `generate_corpus`.
        target: fingerprint of its weights.
        taps: after how many layers the residual stream is kept, for feature, exit and medusa drafts.
        top: likeliest tokens kept a position; their mass is exact, the rest is one tail.
        corpus: what tells the shards from another corpus's of the same names.
        dtype: of `params`.

    Raises:
        ValueError: a folder made with other settings, a broken shard, ids outside the vocabulary.
    """
    folder, width = Path(out), model.config.hidden_size
    settings = {"target": target, "taps": taps, "top": top, "width": width, "corpus": corpus, "dtype": dtype}
    claim(folder / META, settings, what="a teacher")
    found, tokens = [], 0
    for number, shard in enumerate(shards):
        part = folder / shard.stem
        if not part.exists():
            documents = documents_of(shard, vocab_size)
            _write(part, documents, _run(model, params, documents, taps, top, vocab_size))
            tokens += sum(len(row) for row, _ in documents)
        found.append(part)
        told(number + 1, len(shards), tokens)
    return found


Document = tuple[np.ndarray, int]
"""Token ids, int32, and how many of them are a prompt's."""


def documents_of(shard: Path, vocab_size: int) -> list[Document]:
    """A shard's documents, cut to the widest pass.

    Raises:
        ValueError: a broken shard, or one of another vocabulary.
    """
    documents = [(row[: WIDTHS[-1]], min(prompt, WIDTHS[-1])) for row, prompt in read_shard(shard).rows()]
    worst = max(int(row.max()) for row, _ in documents)
    if worst >= vocab_size:
        raise ValueError(
            f"{shard} has token id {worst}; this target's ids are 0 to {vocab_size - 1}, so it was tokenised with "
            "another vocabulary: generate the corpus with this target"
        )
    return documents


def side_by_side(documents: Sequence[Document]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, starts and prompts of documents, as a `Part` has them."""
    lengths = [len(row) for row, _ in documents]
    tokens = np.concatenate([row for row, _ in documents]).astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return tokens, starts, np.asarray([prompt for _, prompt in documents], np.int32)


def _run(
    model: LanguageModel,
    params: Params,
    documents: list[Document],
    taps: tuple[int, ...],
    top: int,
    vocab_size: int,
) -> list[dict[str, np.ndarray]]:
    """What is kept of each document, in their order."""
    kept: list[dict[str, np.ndarray]] = [{} for _ in documents]
    for width in WIDTHS:
        narrower = max((w for w in WIDTHS if w < width), default=0)
        members = [i for i, (row, _) in enumerate(documents) if narrower < len(row) <= width]
        rows = BATCH // width
        for start in range(0, len(members), rows):
            batch = members[start : start + rows]
            tokens = np.zeros((rows, width), np.int32)
            for place, i in enumerate(batch):
                tokens[place, : len(documents[i][0])] = documents[i][0]
            seen = jax.device_get(_look(model, taps, top, vocab_size, params, jnp.asarray(tokens)))
            for place, i in enumerate(batch):
                kept[i] = {name: leaf[place, : len(documents[i][0])] for name, leaf in seen.items()}
    return kept


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _look(
    model: LanguageModel, taps: tuple[int, ...], top: int, vocab_size: int, params: Params, tokens: jax.Array
) -> dict[str, jax.Array]:
    rows, width = tokens.shape
    cache = model.init_cache(rows, 1, headroom=1)
    positions = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), (rows, width))
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((width, width), bool)), (rows, width, width))
    out, features = tapped(model, params, tokens, positions, mask, cache, taps=taps)
    log_p, ids = jax.lax.top_k(out.logits[..., :vocab_size], top)
    log_p = log_p - jax.nn.logsumexp(out.logits[..., :vocab_size], axis=-1, keepdims=True)
    kept = {f"features-{tap}": leaf.astype(jnp.bfloat16) for tap, leaf in features.items()}
    return kept | {"ids": ids, "log_p": log_p.astype(jnp.float16)}


def _write(part: Path, documents: list[Document], kept: list[dict[str, np.ndarray]]) -> None:
    beside = part.with_suffix(".part")
    beside.mkdir(exist_ok=True)
    for name, array in zip(("tokens", "starts", "prompts"), side_by_side(documents), strict=True):
        np.save(beside / f"{name}.npy", array)
    for name in kept[0]:
        joined = np.concatenate([each[name] for each in kept])
        np.save(beside / f"{name}.npy", joined.view(np.uint16) if joined.dtype == ml_dtypes.bfloat16 else joined)
    beside.rename(part)


def open_teacher(folder: str | Path) -> tuple[Part, ...]:
    """What `build_teacher` wrote; nothing of it is in memory.

    Raises:
        ValueError: a folder that is none, or that holds no part yet, or a broken part.
    """
    folder = Path(folder)
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} holds no teacher ({error}); make it with scripts/train_draft.py --corpus") from None
    parts = tuple(_open(part, meta) for part in sorted(folder.iterdir()) if part.is_dir() and part.suffix != ".part")
    if not parts:
        raise ValueError(f"{folder} holds no part of a teacher yet; make it from a corpus first")
    return parts


def _open(part: Path, meta: dict[str, Any]) -> Part:
    read: Callable[[str], np.ndarray] = lambda name: np.load(part / f"{name}.npy", mmap_mode="r")  # noqa: E731
    try:
        tokens, law = read("tokens"), Law(read("ids"), read("log_p"))
        features = {tap: read(f"features-{tap}").view(ml_dtypes.bfloat16) for tap in meta["taps"]}
        starts, prompts = np.asarray(read("starts")), np.asarray(read("prompts"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{part} is broken ({error}); delete it and make it again") from None
    if any(len(each) != len(tokens) for each in (law.ids, law.log_p, *features.values())) or starts[-1] != len(tokens):
        raise ValueError(f"{part} is broken (its arrays differ in length); delete it and make it again")
    return Part(tokens, starts, prompts, law, features)
