"""Full information: what a round says of every proposal that was at hand, chosen or not."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxspec.contracts import Choice, Feedback, Proposal, Setup, Verdict
from jaxspec.typing import RowFloats, Rows


class AtHand(NamedTuple):
    """Every proposal of a round: those of the free sources, and of the source that each row chose."""

    tokens: Int[Array, "B N A"]
    drawn: Int[Array, "B N"]
    confidence: Float[Array, "B N A"]


def at_hand(setup: Setup, free: dict[int, Proposal], drafted: Proposal, choice: Choice) -> AtHand:
    """Gather them.

    Args:
        free: by index, as offered, before any choice cut them.
        drafted: what the rows asked of the sources that they chose, without a tail.
    """
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
    return AtHand(jnp.stack(tokens, 1), jnp.stack(count, 1), jnp.stack(confidence, 1))


def full_information(
    setup: Setup,
    hand: AtHand,
    drafted: Proposal,
    choice: Choice,
    verdict: Verdict,
    chances: Float[Array, "B N A"],
    temperature: RowFloats,
) -> Feedback:
    """Score every proposal that was at hand.

    Where a row samples, a draft that was not drawn itself is taken with the target's probability of it, and one that
    was drawn from q with min(1, p / q). Drafts drawn with the noise that also draws the target's token (`coupled`)
    are taken more often than either says: they count by what became of them, as all drafts do in greedy rows.

    Args:
        drafted: as in `at_hand`.
        chances: the target's probabilities of the tokens, 0 in greedy rows.
    """
    emitted = jnp.broadcast_to(verdict.emitted[:, None, : hand.tokens.shape[2]], hand.tokens.shape)
    known, right = censor(hand.tokens, hand.drawn, emitted, verdict.count)
    own = said = right.astype(jnp.float32)
    if setup.verify == "rejection" and drafted.q_log is not None:
        x = jnp.clip(drafted.tokens, 0, drafted.q_log.shape[-1] - 1)[..., None]
        log_q = jnp.take_along_axis(drafted.q_log, x, axis=2)[..., 0]  # at least -80, so that p / q stays finite
        own = jnp.minimum(chances * jnp.exp(-jnp.maximum(log_q, -80.0))[:, None], 1.0)
    mine = (choice.source[:, None] == jnp.arange(len(setup.sources))[None, :]) & drafted.sampled[:, None]
    chance = jnp.where(mine[..., None], own, chances)
    draws = (temperature > 0)[:, None, None] & (setup.verify != "greedy")
    chance = jnp.where(known, jnp.where(draws, chance, said), 0.0)
    ran = jnp.where(verdict.count[:, None] > 0, hand.drawn, 0)
    return Feedback(known, right, chance, hand.confidence, ran, verdict.count)


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


__all__ = ["AtHand", "at_hand", "censor", "full_information"]
