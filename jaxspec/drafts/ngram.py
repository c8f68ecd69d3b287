"""A static table of frequent token sequences: the longest context that it knows says what comes next.

A context of 1 to C tokens lies in one of N buckets, in any of its W slots, told apart by 32 bits more of its hash:

    text  .. a b c d      contexts   d | c d | b c d | a b c d
                          bucket     7   2     9       4          one gather of all C buckets
                          found      x   x     x       .          so b c d says what comes next, and how often it did

Cost: FREE. A few small array operations a depth, 0.01 ms a round of 7 drafts on a CPU.
Signals: `confidence`, the empirical probability at each depth; `match`, the tokens of the context at the first depth.
Memory: the table, 10 bytes a slot (12 where ids need more than 16 bits); no state.
"""

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from jaxtyping import Array, Float, Int

from jaxspec.contracts import FREE, DraftSource, EngineParams, Proposal, View
from jaxspec.drafts.none import empty_proposal
from jaxspec.text import Tokenizer, compare_vocabularies
from jaxspec.typing import PyTree, RowMask, Rows

NAME = "ngram"
RECORD, ARRAYS, FORMAT = "draft.json", "ngram.safetensors", 1
LEAVES = ("check", "next", "count", "hits", "entries")
"""Of a table: [N, W] uint32 hashes (0 is an empty slot), the most frequent next token (uint16 or uint32), how often the
context was followed by any token and by this one (uint16, scaled down together where they are larger); and [C] uint32,
how many contexts there are of each length."""

ArrayT = TypeVar("ArrayT", np.ndarray, jax.Array)


@functools.lru_cache(maxsize=64)
def ngram(*, name: str = NAME, threshold: float = 0.5, lookahead: int) -> DraftSource:
    """Draft the most frequent next token after the longest known context, and so on from there.

    Args:
        name: the source's name; its table, from `load_ngram`, is `EngineParams.drafts[name]`.
        threshold: drafting stops before a token whose empirical probability is below it, 0 to 1. Static.
        lookahead: drafts proposed at the most. Static.

    Source: Katz 1987 for backing off; Ou et al. 2024, "Lossless acceleration with adaptive n-gram" (arXiv:2404.08698).

    Raises:
        ValueError: a threshold out of range.
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"ngram got threshold {threshold}; give a probability, 0 to 1")
    return DraftSource(
        name=name,
        cost=FREE,
        init=lambda rows, capacity, dtype: (),
        propose=functools.partial(_propose, name, threshold, lookahead),
        observe=lambda state, scratch, view, ran, verdict: state,
    )


class Found(NamedTuple):
    """What a table knows of some contexts."""

    token: Rows  # most frequent next token
    probability: Float[Array, "B"]  # how often it was the next one; 0 where no context was found
    used: Rows  # tokens of the longest context found, 0 where none was


class Chain(NamedTuple):
    """A proposal on its way."""

    depth: Int[Array, ""]
    alive: RowMask
    context: Int[Array, "B C"]  # the last tokens, drafts included; the most recent is last
    known: Rows  # how many of them there are
    proposal: Proposal


def _propose(
    name: str, threshold: float, most: int, params: EngineParams, view: View, state: PyTree, lookahead: Rows
) -> tuple[Proposal, PyTree]:
    del state
    table = params.drafts.get(name)
    if table is None:
        raise ValueError(
            f"{name} has no table; make one with scripts/build_ngram.py, and give EngineParams.drafts[{name!r}] = "
            "load_ngram(folder, tokenizer)"
        )

    def going(chain: Chain) -> jax.Array:
        return jnp.any(chain.alive)

    def body(chain: Chain) -> Chain:
        found, (depth, drafted) = find(table, chain.context, chain.known), (chain.depth, chain.proposal)
        sure = chain.alive & (found.used > 0) & (found.probability >= threshold)
        here = (jnp.arange(most, dtype=jnp.int32) == depth)[None, :]
        drafted = drafted._replace(
            tokens=jnp.where(here & sure[:, None], found.token[:, None], drafted.tokens),
            count=drafted.count + sure.astype(jnp.int32),
            match=jnp.where(sure & (depth == 0), found.used, drafted.match),
            confidence=jnp.where(here & chain.alive[:, None], found.probability[:, None], drafted.confidence),
        )
        context = jnp.concatenate([chain.context[:, 1:], found.token[:, None]], axis=1)
        context = jnp.where(sure[:, None], context, chain.context)
        return Chain(depth + 1, sure & (depth + 1 < lookahead), context, chain.known + 1, drafted)

    width = table["entries"].shape[0]
    at = view.length[:, None] - width + jnp.arange(width, dtype=jnp.int32)[None, :]
    context = jnp.take_along_axis(view.tokens, jnp.maximum(at, 0), axis=1)
    drafted = empty_proposal(len(lookahead), most)
    chain = Chain(jnp.int32(0), lookahead > 0, context, view.length, drafted)
    return jax.lax.while_loop(going, body, chain).proposal, ()


def find(table: Mapping[str, jax.Array], context: Int[Array, "B C"], known: Rows) -> Found:
    """What follows the longest suffix of each context that the table has.

    Args:
        context: the last tokens of each text, the most recent last; of them the last `known` ones are there.
    """
    buckets, slots = table["check"].shape
    place, check = keys(context.astype(jnp.uint32))
    bucket = (place % jnp.uint32(buckets)).astype(jnp.int32)
    length = jnp.arange(1, context.shape[1] + 1, dtype=jnp.int32)[None, :]
    hit = (table["check"][bucket] == check[:, :, None]) & (length <= known[:, None])[:, :, None]
    used = jnp.max(jnp.where(jnp.any(hit, axis=2), length, 0), axis=1)
    at = bucket * slots + jnp.argmax(hit, axis=2).astype(jnp.int32)
    at = jnp.take_along_axis(at, jnp.maximum(used - 1, 0)[:, None], axis=1)[:, 0]
    token, count, hits = (table[name].reshape(-1)[at] for name in ("next", "count", "hits"))
    share = hits.astype(jnp.float32) / jnp.maximum(count, 1).astype(jnp.float32)
    return Found(token.astype(jnp.int32), jnp.where(used > 0, share, 0.0), used)


def keys(context: ArrayT) -> tuple[ArrayT, ArrayT]:
    """Hashes of each context's suffixes: where one lies, and what tells it from its neighbours there (never 0).

    The same bits from numpy, which builds tables, and from jax, which reads them.

    Args:
        context: uint32 [..., C] tokens, the most recent last.

    Returns:
        Two uint32 [..., C]; entry k - 1 is of the last k tokens.
    """
    xp: Any = np if isinstance(context, np.ndarray) else jnp
    place = xp.full_like(context[..., 0], 0x51ED270B)
    check = xp.full_like(context[..., 0], 0x2545F491)
    places, checks = [], []
    for back in range(1, context.shape[-1] + 1):
        token = context[..., -back]
        place = (place ^ token) * xp.uint32(0x9E3779B1)
        place = (place ^ (place >> xp.uint32(15))) * xp.uint32(0x2C1B3C6D)
        place = place ^ (place >> xp.uint32(13))
        check = (check ^ token) * xp.uint32(0x85EBCA6B)
        check = (check ^ (check >> xp.uint32(13))) * xp.uint32(0xC2B2AE35)
        check = check ^ (check >> xp.uint32(16))
        places.append(place)
        checks.append(xp.maximum(check, xp.uint32(1)))
    return xp.stack(places, -1), xp.stack(checks, -1)


def vocabulary_digest(vocabulary: Tokenizer | Sequence[str]) -> str:
    """SHA-256 (hex) of a vocabulary's tokens in their order; the filler that pads an end does not count."""
    tokens = vocabulary.vocabulary() if isinstance(vocabulary, Tokenizer) else list(vocabulary)
    real = tokens[: compare_vocabularies(tokens, tokens)]
    return hashlib.sha256(json.dumps(real).encode()).hexdigest()


def load_ngram(folder: str | Path, vocabulary: Tokenizer | Sequence[str]) -> dict[str, jax.Array]:
    """The table of an artifact, `EngineParams.drafts["ngram"]`: arrays by the names of `LEAVES`.

    Args:
        folder: made by scripts/build_ngram.py.
        vocabulary: the target's.

    Raises:
        ValueError: a folder that is no such artifact, is damaged, or belongs to another vocabulary.
    """
    folder = Path(folder)
    record = read_record(folder)
    if record["vocabulary"] != vocabulary_digest(vocabulary):
        raise ValueError(
            f"{folder} was built with another vocabulary than the target's; "
            "build one with scripts/build_ngram.py --target, giving this target"
        )
    broken = f"{folder / ARRAYS} is truncated or was changed; build or copy the table again"
    try:
        content = (folder / ARRAYS).read_bytes()
        if hashlib.sha256(content).hexdigest() != record["sha256"]:
            raise ValueError(broken)
        arrays = safetensors.numpy.load(content)
    except (OSError, safetensors.SafetensorError):
        raise ValueError(broken) from None
    if set(arrays) != set(LEAVES) or len({arrays[name].shape for name in LEAVES[:4]}) != 1:
        raise ValueError(f"{folder / ARRAYS} does not hold {', '.join(LEAVES)}; build the table again")
    if arrays["next"].max(initial=0) >= record["vocab_size"]:
        raise ValueError(f"{folder / ARRAYS} names tokens outside its vocabulary; build the table again")
    return {name: jnp.asarray(arrays[name]) for name in LEAVES}


def read_record(folder: str | Path) -> dict[str, Any]:
    """What an artifact says of itself: kind, vocabulary, corpus, counts.

    Raises:
        ValueError: a folder that holds no table, or a record that cannot be read.
    """
    file = Path(folder) / RECORD
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(
            f"{folder} holds no n-gram table; make one with scripts/build_ngram.py --corpus FILE --out {folder}"
        ) from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read ({error}); build or copy the table again") from None
    needed = {"vocabulary": str, "sha256": str, "vocab_size": int}
    whole = isinstance(record, dict) and all(isinstance(record.get(name), kind) for name, kind in needed.items())
    if not whole or (record.get("kind"), record.get("format")) != (NAME, FORMAT):
        raise ValueError(f"{file} is not the record of an n-gram table of format {FORMAT}; build the table again")
    return record
