"""Suffix matching: what followed most often where the text ended as it ends now, as far back as that can be followed.

    tokens    x a b c  y a b c  z a b c  y a b c      length 16
    match     . . . 3  . . . 7  . . . 3  . . .        of the text up to each index with the whole text's end

The longest match, 7 tokens, is at index 7: what followed there is drafted. Of several, the most frequent next token
wins, ties to the most recent, and so on among those that went on like this.

Cost: FREE. At 512 slots 0.01 ms a round on a CPU, to propose and to take in what was committed; 0.3 ms with a pool of
65,536 tokens. Signals: `match`, the tokens of the longest match (up to `max_match`); `confidence`, the share of the
votes at each depth. Memory: 2 bytes a slot and row, and 4 a token of the pool where there is one.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jaxspec.cache import append
from jaxspec.contracts import FREE, DraftSource, EngineParams, Proposal, Verdict, View
from jaxspec.typing import PyTree, RowMask, Rows

NAME = "suffix"


class SuffixState(NamedTuple):
    """How much of the text's end each earlier place has before it; of a text that may still be behind the row's."""

    match: Int[Array, "B S"]  # int16, at most max_match; entries at and beyond `seen` - 1 mean nothing
    seen: Rows  # int32, tokens of the text that `match` is of; 0 before the first round


class Options(NamedTuple):
    """What is static about the source."""

    max_match: int
    min_match: int
    growth: int
    voters: int
    pool: int
    lookahead: int


@functools.lru_cache(maxsize=64)
def suffix(
    *, max_match: int = 32, min_match: int = 2, growth: int = 2, voters: int = 16, pool: int = 0, lookahead: int
) -> DraftSource:
    """Draft the most frequent continuation of the longest earlier matches of the text's end.

    With a pool the matches are looked for there too, and among equally long ones the row's own are more recent. It is
    the one way by which something of another request reaches a row, and it reaches its drafts alone, never its tokens.

    Args:
        max_match: tokens that a match has at the most; longer ones count as equal. Static.
        min_match: tokens below which a match does not count. Static.
        growth: a match of m tokens gives growth ** m - 1 drafts at the most: 3, 7, 15 from 2 on. Static.
        voters: matches that vote, the most recent of the longest. Static.
        pool: tokens of `EngineParams.drafts["suffix"]`, int32 [pool] as `suffix_pool` makes it; 0 has none and reads
            nothing there. Costs pool * max_match comparisons a row and round. Static.
        lookahead: drafts proposed at the most. Static.

    Source: Oliaro et al. 2024, "SuffixDecoding" (arXiv:2411.04975), with vectors of match lengths in place of trees.

    Raises:
        ValueError: an option out of range.
    """
    if not 1 <= min_match <= max_match < 2**15:
        raise ValueError(
            f"suffix got min_match {min_match} and max_match {max_match}; give 1 <= min_match <= max_match < 32768"
        )
    if growth < 2 or voters < 1 or pool < 0:
        raise ValueError(
            f"suffix got growth {growth}, voters {voters} and pool {pool}; give 2 or more, 1 or more and 0 or more"
        )
    options = Options(max_match, min_match, growth, voters, pool, lookahead)
    return DraftSource(
        name=NAME,
        cost=FREE,
        init=_init,
        propose=functools.partial(_propose, options),
        observe=functools.partial(_observe, options),
    )


def suffix_pool(texts: Iterable[Sequence[int] | np.ndarray], size: int) -> np.ndarray:
    """Token sequences as a pool of `size` tokens, int32, -1 between them; what does not fit is left out from the front.

    size 8, texts 1 2 3 | 4 5 6   ->   -1 1 2 3 -1 4 5 6
    """
    ends = [token for text in texts for token in (-1, *text)][-size:] if size else []
    return np.asarray([-1] * (size - len(ends)) + ends, np.int32)


def _init(rows: int, capacity: int, dtype: DTypeLike) -> SuffixState:
    del dtype
    return SuffixState(jnp.zeros((rows, capacity), jnp.int16), jnp.zeros(rows, jnp.int32))


def _propose(
    options: Options, params: EngineParams, view: View, state: SuffixState, lookahead: Rows
) -> tuple[Proposal, PyTree]:
    match = jax.lax.cond(
        jnp.all(state.seen == view.length),
        lambda: state.match,
        lambda: matches(view.tokens, view.tokens, view.length, options.max_match),
    )
    index = jnp.arange(match.shape[1], dtype=jnp.int32)[None, :]
    match = jnp.where(index < view.length[:, None] - 1, match, 0)  # the end itself is no earlier place
    pool = _pool(options, params)
    there = matches(pool[None, :], view.tokens, view.length, options.max_match)
    followed = jnp.pad(pool[1:], (0, min(1, options.pool)), constant_values=-1) >= 0
    match = jnp.concatenate([jnp.where(followed[None, :], there, 0), match], axis=1)
    longest = jnp.max(match, axis=1)
    places = most_recent((match == longest[:, None]) & (match > 0), options.voters)
    said = continuations(pool, view.tokens, view.length, places, options.lookahead)
    drafts, share, spoken = elect(said)
    longest = jnp.where(longest >= options.min_match, longest, 0).astype(jnp.int32)
    most = options.lookahead  # a match of so many tokens gives more than so many drafts
    by_match = [min(options.growth**m - 1, most) for m in range(most + 1)]
    trusted = jnp.asarray(by_match, jnp.int32)[jnp.minimum(longest, most)]
    proposal = Proposal(
        tokens=drafts,
        count=jnp.minimum(jnp.minimum(lookahead, trusted), spoken),
        q_log=None,
        sampled=jnp.zeros(len(lookahead), bool),
        match=longest,
        confidence=share,
    )
    return proposal, ()


def _pool(options: Options, params: EngineParams) -> Int[Array, "P"]:
    """The tokens of earlier texts; none unless asked for."""
    if options.pool == 0:
        return jnp.zeros(0, jnp.int32)
    given = params.drafts.get(NAME)
    if given is None or given.shape != (options.pool,):
        found = "nothing there" if given is None else f"shape {given.shape}"
        raise ValueError(
            f"suffix has a pool of {options.pool} tokens and found {found}; "
            f'give EngineParams.drafts["suffix"] = suffix_pool(texts, {options.pool})'
        )
    return given


def _observe(
    options: Options, state: SuffixState, scratch: PyTree, view: View, ran: RowMask, verdict: Verdict
) -> SuffixState:
    """The matches of the text with the committed tokens; all anew where the state is behind, as after prefill."""
    del scratch, ran
    tokens = append(view.tokens, verdict.emitted, view.length, verdict.count)
    length = view.length + verdict.count
    match = jax.lax.cond(
        jnp.all(state.seen == view.length),
        lambda: longer(state.match, tokens, length, verdict.count, verdict.emitted.shape[1], options.max_match),
        lambda: matches(tokens, tokens, length, options.max_match),
    )
    return SuffixState(match, length)


def matches(places: Int[Array, "R S"], tokens: Int[Array, "B T"], length: Rows, most: int) -> Int[Array, "B S"]:
    """Tokens up to each index of `places` that are also the last ones of each row's text; int16, at most `most`.

    Args:
        places: what is searched, one for all rows (R = 1) or one a row.
        tokens, length: the texts.
        most: tokens that are compared. Static.
    """
    return _common(places, tokens, length, jnp.full_like(length, most), most)[0]


def longer(
    match: Int[Array, "B S"], tokens: Int[Array, "B S"], length: Rows, taken: Rows, steps: int, most: int
) -> Int[Array, "B S"]:
    """`match` of texts that have grown by `taken` tokens each, to `length` in all.

    grown by x y:   2 + match[i - 2] where tokens[i - 1 : i + 1] is x y, 1 where only the last one agrees, 0 else

    Args:
        steps: the largest `taken`. Static.
        most: as in `matches`. Static.
    """
    common, whole = _common(tokens, tokens, length, taken, steps)
    before = jnp.arange(match.shape[1], dtype=jnp.int32)[None, :] - taken[:, None]
    earlier = jnp.take_along_axis(match, jnp.maximum(before, 0), axis=1)
    return jnp.minimum(common + jnp.where(whole & (before >= 0), earlier, 0), most)


def _common(
    places: Int[Array, "R S"], tokens: Int[Array, "B T"], length: Rows, taken: Rows, steps: int
) -> tuple[Int[Array, "B S"], Bool[Array, "B S"]]:
    """Of the last `taken` tokens of each text, how many each place has before it, int16, and whether all of them."""
    slots = places.shape[1]
    at = length[:, None] - 1 - jnp.arange(steps, dtype=jnp.int32)[None, :]
    ends = jnp.take_along_axis(tokens, jnp.maximum(at, 0), axis=1)
    ends = jnp.where(at >= 0, ends, -2)  # before the text; no token, nor the -1 before what is searched
    led = jnp.pad(places, ((0, 0), (steps, 0)), constant_values=-1)
    whole = jnp.ones((len(length), slots), bool)
    common = jnp.zeros((len(length), slots), jnp.int16)
    for back in range(steps):
        counts = (back < taken)[:, None]
        same = led[:, steps - back : steps - back + slots] == ends[:, back : back + 1]
        whole = whole & (same | ~counts)
        common = common + (whole & counts).astype(jnp.int16)
    return common, whole


def most_recent(found: Bool[Array, "B S"], count: int) -> Int[Array, "B C"]:
    """The `count` largest indices that are found, descending; -1 where there are no more."""
    index = jnp.arange(found.shape[1], dtype=jnp.float32)[None, :]  # exact below 2**24, and the fast kind to sort
    best, _ = jax.lax.top_k(jnp.where(found, index, -1.0), min(count, found.shape[1]))
    return best.astype(jnp.int32)


def continuations(
    pool: Int[Array, "P"], tokens: Int[Array, "B S"], length: Rows, places: Int[Array, "B C"], count: int
) -> Int[Array, "B C A"]:
    """The `count` tokens after each place; indices below P are the pool's, then come those of the row's own text.

    Past the text's end it repeats, as a text that loops would; past a text of the pool there is -1, as for place -1.

    length 7, place 4 of a row's own: known continuation 5 6, then 5 6 5 ...
    """
    own = places - pool.shape[0]
    depth = jnp.arange(count, dtype=jnp.int32)[None, None, :]
    period = jnp.maximum(length[:, None] - 1 - own, 1)[:, :, None]
    at = jnp.clip(own[:, :, None] + 1 + jnp.mod(depth, period), 0, tokens.shape[1] - 1)
    said = jnp.take_along_axis(tokens, at.reshape(len(tokens), -1), axis=1).reshape(at.shape)
    if pool.shape[0]:
        at = places[:, :, None] + 1 + depth
        earlier = jnp.where(at < pool.shape[0], pool[jnp.minimum(at, pool.shape[0] - 1)], -1)
        said = jnp.where((own >= 0)[:, :, None], said, earlier)
    return jnp.where((places >= 0)[:, :, None], said, -1)


def elect(said: Int[Array, "B C A"]) -> tuple[Int[Array, "B A"], Float[Array, "B A"], Rows]:
    """At each depth the token that most voters say who agreed so far, ties to the first voter.

    Args:
        said: what each voter says at each depth; -1, and what follows it, is nothing.

    Returns:
        The drafts, the winner's share of the votes at each depth (1 where nobody is left), and how many drafts there
        are until nobody is left.
    """
    agreed = said[:, :, 0] >= 0
    drafts, shares, alive = [], [], []
    for depth in range(said.shape[2]):
        word = said[:, :, depth]
        speaks = agreed & (word >= 0)
        votes = jnp.sum((word[:, :, None] == word[:, None, :]) & speaks[:, None, :], axis=2, dtype=jnp.int32)
        votes = jnp.where(speaks, votes, 0)
        winner = jnp.argmax(votes, axis=1)[:, None]
        token, won = (jnp.take_along_axis(each, winner, axis=1)[:, 0] for each in (word, votes))
        entitled = jnp.maximum(jnp.sum(agreed, axis=1, dtype=jnp.int32), 1)
        alive.append(won > 0)
        drafts.append(jnp.maximum(token, 0))
        shares.append(jnp.where(won > 0, won.astype(jnp.float32) / entitled.astype(jnp.float32), 1.0))
        agreed = speaks & (word == token[:, None])
    spoken = jnp.sum(jnp.stack(alive, 1), axis=1, dtype=jnp.int32)  # once nobody is left nobody comes back
    return jnp.stack(drafts, 1), jnp.stack(shares, 1), spoken
