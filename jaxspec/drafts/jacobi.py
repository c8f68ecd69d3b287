"""Jacobi, or lookahead decoding: in extra nodes of its window the target guesses on, and its guesses become n-grams.

    level 0      p  a  b  c      p is the pending token; columns 0 to 3, so positions p, p+1, p+2, p+3
    level 1      d  e  f  g      one position further
    level 2      h  i  j  k      two
    said of it   w  x  y  z      the target's likeliest tokens after level 2, three further

    j reads the text, p a b, f and itself: level 0 up to its column, then down the column. That is a tree.

Each round every column gives an n-gram (p d h w, a e i x, ..) for the pool and moves up by one level, so that level 0
is what was guessed longest ago and bettered most often. Then columns move left as the text grows; those that fall off
come back on the right, where any guess is as good a start. In the beginning the grid is the text's own tail.

Drafts come from the pool: the newest n-gram that begins as the text ends, the longest such context first, and on from
its end. They are point masses, judged like all others, so exactness does not depend on what the branch holds.

Cost: FREE to propose, a few array operations. Filling the pool is what costs: in rounds in which a row asks for this
source, W (N - 1) - 1 nodes ride in the target's window. In other rounds the window is as narrow as without the source.
`fixed:jacobi:K` asks every round; `rule` where a draft is offered, and where no source has any.
Signals: `match`, tokens of context that the first n-gram matched. Memory: 4 * buckets * G * (N + 1) bytes a row.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Int

from jaxspec.contracts import FREE, Branch, DraftSource, EngineParams, Proposal, Verdict, View
from jaxspec.typing import PyTree, RowMask, Rows, Tokens

BUCKETS = 256
"""Buckets of n-grams by first token; token ids of two common tokens seldom share one."""

LONGEST = 16
"""Tokens of an n-gram at the most."""

CONTEXT = 1 << 26
"""One token more of context outweighs all of these insertions."""


class JacobiState(NamedTuple):
    """The grid of guesses, and the pool of n-grams."""

    grid: Int[Array, "B L W"]  # L = N - 1 levels; the corner is the pending token's place and means nothing
    started: RowMask  # False: the grid is the text's tail yet
    pool: Int[Array, "B U G N"]  # n-grams in U buckets by first token
    stamps: Int[Array, "B U G"]  # when each was last seen, later is greater; 0 where there is none
    rounds: Rows  # rounds in which the branch rode for the row


class Options(NamedTuple):
    """What is static about the source."""

    columns: int  # W
    size: int  # N
    kept: int  # G
    buckets: int
    lookahead: int


@functools.lru_cache(maxsize=64)
def jacobi(
    columns: int = 5, size: int = 4, kept: int = 7, *, buckets: int = BUCKETS, lookahead: int, name: str = "jacobi"
) -> DraftSource:
    """Draft from n-grams that the target's own parallel Jacobi iterations make.

    Args:
        columns: W, guesses at consecutive places. Static.
        size: N, tokens of an n-gram. W (N - 1) - 1 nodes ride in the target's window. Static.
        kept: G, n-grams a bucket; the one not seen for longest gives way. Static.
        buckets: of the pool. Static.
        lookahead: drafts proposed at the most. Static.
        name: the source's.

    Source: Fu et al. 2024, "Break the sequential dependency of LLM inference using lookahead decoding"
    (arXiv:2402.02057); there G n-grams are verified side by side, here one chain of them.

    Raises:
        ValueError: an option out of range.
    """
    if columns < 1 or not 3 <= size <= LONGEST or kept < 1 or buckets < 1:
        raise ValueError(
            f"jacobi got W {columns}, N {size}, G {kept} and {buckets} buckets; "
            f"give W 1 or more, N 3 to {LONGEST}, G 1 or more and a bucket"
        )
    options = Options(columns, size, kept, buckets, lookahead)
    return DraftSource(
        name=name,
        cost=FREE,
        init=functools.partial(_init, options),
        propose=functools.partial(_propose, options),
        observe=lambda state, scratch, view, ran, verdict: state,
        branch=Branch(
            _parents(columns, size - 1), functools.partial(_nodes, options), functools.partial(_learn, options)
        ),
    )


def _parents(columns: int, levels: int) -> tuple[int, ...]:
    """The grid as a tree, level by level: left neighbours on level 0, below it the node above.

    columns 3, levels 2:   -1 0 1 | 0 1 2
    """
    return (*range(-1, columns - 1), *range(columns * (levels - 1)))


def _init(options: Options, rows: int, capacity: int, dtype: DTypeLike) -> JacobiState:
    del capacity, dtype
    pool = (rows, options.buckets, options.kept)
    return JacobiState(
        grid=jnp.zeros((rows, options.size - 1, options.columns), jnp.int32),
        started=jnp.zeros(rows, bool),
        pool=jnp.zeros((*pool, options.size), jnp.int32),
        stamps=jnp.zeros(pool, jnp.int32),
        rounds=jnp.zeros(rows, jnp.int32),
    )


def _grid(state: JacobiState, view: View) -> Int[Array, "B L W"]:
    """The grid with the pending token in its corner; at first with the text's tail in it, place by place.

    text .. s t u v p, three columns and two levels:   p u v    guesses at p+1, p+2, p+3 are u v p
                                                       u v p
    """
    _, levels, columns = state.grid.shape
    place = np.arange(levels, dtype=np.int32)[:, None] + np.arange(columns, dtype=np.int32)[None, :]
    deepest = levels + columns - 2
    flat = jnp.asarray(place.reshape(1, -1))
    at = jnp.mod(view.length[:, None] - 1 - deepest + flat, view.length[:, None])
    tail = jnp.take_along_axis(view.tokens, at, axis=1).reshape(state.grid.shape)
    grid = jnp.where(state.started[:, None, None], state.grid, tail)
    pending = jnp.take_along_axis(view.tokens, view.length[:, None] - 1, axis=1)[:, 0]
    return grid.at[:, 0, 0].set(pending)


def _nodes(options: Options, state: JacobiState, view: View) -> Tokens:
    """Tokens of the branch: the grid but for its corner, which is the window's pending token."""
    del options
    return _grid(state, view).reshape(len(view.length), -1)[:, 1:]


def _learn(
    options: Options, state: JacobiState, view: View, guesses: Int[Array, "B M"], rode: RowMask, verdict: Verdict
) -> JacobiState:
    """N-grams into the pool and columns one level up where the branch rode; columns left as far as the text has grown.

    A column that moved up stands one place further left already.
    """
    grid = _grid(state, view)
    said = guesses[:, -options.columns :]
    grams = jnp.concatenate([grid, said[:, None]], axis=1)
    pool, stamps = _insert(state, grams, rode)
    grid = jnp.where(rode[:, None, None], grams[:, 1:], state.grid)
    places = jnp.where(rode, verdict.count - 1, verdict.count)
    column = jnp.mod(jnp.arange(options.columns, dtype=jnp.int32)[None, :] + places[:, None], options.columns)
    grid = jnp.take_along_axis(grid, column[:, None, :], axis=2)
    return JacobiState(grid, state.started | rode, pool, stamps, state.rounds + rode.astype(jnp.int32))


def _insert(
    state: JacobiState, grams: Int[Array, "B N W"], rode: RowMask
) -> tuple[Int[Array, "B U G N"], Int[Array, "B U G"]]:
    """The columns' n-grams, one after the other; one that is there is new again, any other takes the oldest's place."""
    rows, _, columns = grams.shape
    row = jnp.arange(rows, dtype=jnp.int32)
    buckets = state.pool.shape[1]

    def put(column: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        pool, stamps = carry
        gram = jax.lax.dynamic_index_in_dim(grams, column, axis=2, keepdims=False)
        bucket = jnp.mod(gram[:, 0], buckets)
        held, ages = pool[row, bucket], stamps[row, bucket]
        same = jnp.all(held == gram[:, None, :], axis=-1) & (ages > 0)
        slot = jnp.argmin(jnp.where(same, -1, ages), axis=1)
        bucket = jnp.where(rode, bucket, buckets)  # out of range: nothing is written
        stamp = state.rounds * columns + column.astype(jnp.int32) + 1
        pool = pool.at[row, bucket, slot].set(gram, mode="drop")
        return pool, stamps.at[row, bucket, slot].set(stamp, mode="drop")

    return jax.lax.fori_loop(0, jnp.where(jnp.any(rode), columns, 0), put, (state.pool, state.stamps))


def _propose(
    options: Options, params: EngineParams, view: View, state: JacobiState, lookahead: Rows
) -> tuple[Proposal, PyTree]:
    del params
    most, tokens = options.lookahead, options.size - 1
    at = view.length[:, None] - jnp.arange(tokens, 0, -1, dtype=jnp.int32)[None, :]
    tail = jnp.where(at >= 0, jnp.take_along_axis(view.tokens, jnp.maximum(at, 0), axis=1), -1)
    depth = jnp.arange(most, dtype=jnp.int32)[None, :]
    step = jnp.arange(tokens, dtype=jnp.int32)[None, :]

    def body(carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        going, drafts, count, match, tail = carry
        said, given, context = newest(state, tail)
        given = jnp.where(going, given, 0)
        offset = depth - count[:, None]
        fresh = (offset >= 0) & (offset < given[:, None])
        drafts = jnp.where(fresh, jnp.take_along_axis(said, jnp.clip(offset, 0, tokens - 1), axis=1), drafts)
        match = jnp.where(count == 0, jnp.where(going, context, 0), match)
        tail = jnp.take_along_axis(jnp.concatenate([tail, said], axis=1), given[:, None] + step, axis=1)
        count = count + given
        return going & (given > 0) & (count < lookahead), drafts, count, match, tail

    rows = len(lookahead)
    none = jnp.zeros(rows, jnp.int32)
    start = (lookahead > 0, jnp.zeros((rows, most), jnp.int32), none, none, tail)
    _, drafts, count, match, _ = jax.lax.while_loop(lambda carry: jnp.any(carry[0]), body, start)
    proposal = Proposal(
        tokens=drafts,
        count=jnp.minimum(count, lookahead),
        q_log=None,
        sampled=jnp.zeros(rows, bool),
        match=match,
        confidence=jnp.ones((rows, most), jnp.float32),
    )
    return proposal, ()


def newest(state: JacobiState, tail: Int[Array, "B L"]) -> tuple[Int[Array, "B L"], Rows, Rows]:
    """What follows a text that ends in `tail`, by the newest n-gram that begins with the longest possible end of it.

    tail 7 8 9, n-grams  9 1 2 3  and  8 9 4 5   ->   4 5, 2 tokens, on 2 tokens of context

    Args:
        tail: the last N - 1 tokens; -1 before the text's beginning.

    Returns:
        The tokens that follow, how many they are (0 to N - 1), and the tokens of context (0 where nothing is found).
    """
    rows, tokens = tail.shape
    row = jnp.arange(rows, dtype=jnp.int32)
    bucket = jnp.mod(tail[:, ::-1], state.pool.shape[1])  # of the contexts of 1, 2, .. tokens
    held = state.pool[row[:, None], bucket]  # [B, L, G, N]
    ages = state.stamps[row[:, None], bucket]
    context = np.arange(1, tokens + 1, dtype=np.int32)[:, None]
    index = np.arange(tokens, dtype=np.int32)[None, :]
    ends = tail[:, np.minimum(tokens - context + index, tokens - 1)]  # the context of m tokens, then anything
    beyond = jnp.asarray(index >= context)[None, :, None, :]
    same = jnp.all((held[..., :-1] == ends[:, :, None, :]) | beyond, axis=-1) & (ages > 0)
    score = jnp.where(same, jnp.asarray(context)[None, :, :] * CONTEXT + ages, 0).reshape(rows, -1)
    best = jnp.argmax(score, axis=1)
    found = jnp.max(score, axis=1) > 0
    matched = (best // held.shape[2] + 1).astype(jnp.int32)
    gram = jnp.take_along_axis(held.reshape(rows, -1, tokens + 1), best[:, None, None], axis=1)[:, 0]
    said = jnp.take_along_axis(gram, jnp.minimum(matched[:, None] + jnp.asarray(index), tokens), axis=1)
    return said, jnp.where(found, tokens + 1 - matched, 0), jnp.where(found, matched, 0)
