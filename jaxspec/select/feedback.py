"""Full information: what the emitted tokens say of every proposal that was at hand, chosen or not."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxspec.contracts import Choice, Feedback, Proposal, Setup, Verdict
from jaxspec.typing import Rows


def full_information(
    setup: Setup, free: dict[int, Proposal], drafted: Proposal, choice: Choice, verdict: Verdict
) -> Feedback:
    """Score the proposals of the free sources, and those of the source that each row chose.

    A draft counts as taken if it is the token that was emitted in its place: what the target says there by its law's
    argmax, or by the one draw that the round has made of it.

    Args:
        free: by index, as offered, before any choice cut them.
        drafted: what the rows asked of the sources that they chose, without a tail.
    """
    rows, depth = drafted.tokens.shape
    tokens, count, confidence = [], [], []
    for index in range(len(setup.sources)):
        mine = choice.source == index
        offered = free.get(index)
        if offered is None:
            tokens.append(drafted.tokens)
            count.append(jnp.where(mine, drafted.count, 0))
            confidence.append(drafted.confidence)
        else:
            tokens.append(offered.tokens)
            count.append(offered.count)
            confidence.append(offered.confidence)
    emitted = jnp.broadcast_to(verdict.emitted[:, None, :depth], (rows, len(tokens), depth))
    known, right = censor(jnp.stack(tokens, 1), jnp.stack(count, 1), emitted, verdict.count)
    drawn = jnp.where(verdict.count[:, None] > 0, jnp.stack(count, 1), 0)
    return Feedback(known, right.astype(jnp.float32), jnp.stack(confidence, 1), drawn, verdict.count)


def censor(
    tokens: Int[Array, "B N A"], count: Int[Array, "B N"], emitted: Int[Array, "B N A"], length: Rows
) -> tuple[Bool[Array, "B N A"], Bool[Array, "B N A"]]:
    """Which drafts the first `length` emitted tokens tell something of, and which of these they confirm.

    emitted  5 8 2 (length 3)   drafts  5 8 2 7   ->   known 1 1 1 0, right 1 1 1 0
                                drafts  5 9 2 7   ->   known 1 1 0 0, right 1 0 0 0
    """
    index = jnp.arange(tokens.shape[2], dtype=jnp.int32)[None, None, :]
    equal = tokens == emitted
    agreed = jnp.pad(
        jnp.cumprod(equal[..., :-1].astype(jnp.int32), axis=2), ((0, 0), (0, 0), (1, 0)), constant_values=1
    )
    known = (agreed > 0) & (index < count[..., None]) & (index < length[:, None, None])
    return known, known & equal


__all__ = ["censor", "full_information"]
