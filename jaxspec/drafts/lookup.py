"""Prompt lookup: what followed the last time the text ended like this."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxspec.contracts import FREE, DraftSource, EngineParams, Proposal, View
from jaxspec.typing import PyTree, Rows


@functools.lru_cache(maxsize=64)
def lookup(*, max_match: int = 16, min_match: int = 2, lookahead: int) -> DraftSource:
    """Draft the continuation of the most recent of the longest earlier matches of the text's end.

    Args:
        max_match: longest suffix compared, in tokens. Static.
        min_match: shortest suffix that counts as a match, in tokens. Static.
        lookahead: drafts proposed at the most. Static.

    Source: Saxena 2023, "Prompt lookup decoding"; Yang et al. 2023, "Inference with reference" (arXiv:2304.04487).

    Raises:
        ValueError: not 1 <= min_match <= max_match.
    """
    if not 1 <= min_match <= max_match:
        raise ValueError(
            f"lookup got min_match {min_match} and max_match {max_match}; give 1 <= min_match <= max_match"
        )

    most = lookahead

    def propose(params: EngineParams, view: View, state: PyTree, lookahead: Rows) -> tuple[Proposal, PyTree]:
        del params, state
        rows = view.length.shape[0]
        end, match, share = jax.vmap(lambda t, n: longest_match(t, n, max_match))(view.tokens, view.length)
        found = match >= min_match
        tokens = jax.vmap(lambda t, n, e: continuation(t, n, e, most))(view.tokens, view.length, end)
        proposal = Proposal(
            tokens=tokens,
            count=jnp.where(found, lookahead, 0),
            q_log=None,
            sampled=jnp.zeros(rows, bool),
            match=jnp.where(found, match, 0),
            confidence=jnp.where(found[:, None], jnp.broadcast_to(share[:, None], (rows, most)), 1.0),
        )
        return proposal, ()

    return DraftSource(
        name="lookup",
        cost=FREE,
        init=lambda rows, capacity, dtype: (),
        propose=propose,
        observe=lambda state, scratch, view, ran, verdict: state,
    )


def longest_match(
    tokens: Int[Array, "S"], length: Int[Array, ""], most: int
) -> tuple[Int[Array, ""], Int[Array, ""], Float[Array, ""]]:
    """Last index of the most recent of the longest earlier matches of the text's end, its length (up to `most`), and
    the share of the equally long ones that went on as it did, with one more that did not, float32.

    tokens  a b c x a b c, length 7: the suffix "a b c" ends at index 2 too  ->  (2, 3, 0.5)
    """
    index = jnp.arange(tokens.shape[0], dtype=jnp.int32)
    alive = index < length - 1
    match = jnp.zeros_like(index)
    for back in range(most):
        # does the token `back` places before index equal the token `back` places before the end?
        wanted = tokens[jnp.maximum(length - 1 - back, 0)]
        alive = alive & (index >= back) & (jnp.roll(tokens, back) == wanted)
        match = match + alive.astype(jnp.int32)
    best = jnp.argmax(match * tokens.shape[0] + index)
    longest = (match == match[best]) & (index < length - 1)
    same = longest & (jnp.roll(tokens, -1) == tokens[jnp.minimum(best + 1, tokens.shape[0] - 1)])
    share = jnp.sum(same) / (jnp.sum(longest) + 1)
    return best.astype(jnp.int32), match[best], share.astype(jnp.float32)


def continuation(tokens: Int[Array, "S"], length: Int[Array, ""], end: Int[Array, ""], count: int) -> Int[Array, "A"]:
    """The `count` tokens after index `end`; past the text's end it repeats, as a text that loops would.

    length 7, end 4: known continuation 5 6, then 5 6 5 ...
    """
    period = jnp.maximum(length - 1 - end, 1)
    at = end + 1 + jnp.mod(jnp.arange(count, dtype=jnp.int32), period)
    return tokens[jnp.clip(at, 0, tokens.shape[0] - 1)]
