"""Hedge over (source, lookahead), full information: every proposal at hand teaches, whoever's was taken.

    law     weights of the arms at hand, and a small part even over those that teach nothing unless they are run
    gain    what each arm would have been rewarded with in the round, as far as the emitted tokens tell
    weights w = w exp(rate gain) of the arms that were told of, with their sum unchanged; the others keep theirs

A round tells of a proposal up to its first miss, and only up to what was emitted. Long arms would be told of when they
fail and not when they do not; so a draft beyond what was emitted counts as taken by as much as drafts of its source and
depth have been taken so far.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxspec.contracts import Choice, Feedback, Selector, Signals
from jaxspec.select import arms as arms_
from jaxspec.select.arms import Arms
from jaxspec.select.cost import CostTable
from jaxspec.select.exp3 import awake, mixed, spread
from jaxspec.select.kinds import Kinds
from jaxspec.typing import PyTree

NAME = 0x4ED6E
NAIVE = (1.2, 2.0)
"""Drafts taken and given of every source and depth before anything was seen."""

FADES = 0.99


class Hedge(NamedTuple):
    """What evolves; float32 but for the rounds."""

    weights: Float[Array, "M"]  # logarithms; they add to 1
    taken: Float[Array, "N A 2"]  # drafts taken and given by source and depth, older ones counting less
    rounds: Int[Array, ""]  # int32
    told: Any  # dict of [B] or [B, N], for people; empty in what is carried from call to call


@functools.lru_cache(maxsize=256)
def hedge(kinds: Kinds, *, rate: float = 2.0, curious: float = 0.03, share: float = 1e-3) -> Selector:
    """Its parameters are `SelectorParams`, of which it reads the costs, or () to guess them.

    Args:
        rate: of learning, in shares of the best reward there can be. Static.
        curious: share of the rounds that are spread over arms of sources which teach nothing unless they run. Static.
        share: how much of all weight is spread evenly after a round, so that a bad arm can come back. Static.

    Source: Freund and Schapire 1997; Freund, Schapire, Singer and Warmuth 1997 for arms that are not always at hand;
    Herbster and Warmuth 1998 for the share.
    """
    arms = arms_.arms_of(kinds)
    quiet = np.isin(np.asarray(arms.source), arms.shared)

    def init(rows: int, _: int) -> Hedge:
        even = jnp.full(len(arms), -jnp.log(float(len(arms))), jnp.float32)
        taken = jnp.zeros((len(kinds.names), kinds.lookahead, 2), jnp.float32)
        return Hedge(even, taken, jnp.int32(0), arms_.nothing_told(arms, rows))

    def choose(params: PyTree, state: Hedge, signals: Signals) -> Choice:
        state = arms_.begun(params, state)
        there = arms_.at_hand(arms, signals, arms_.times_of(arms, arms_.cost_of(params, kinds), signals))
        law = mixed(awake(arms, state.weights, signals), there, 0.0)
        silent = there & jnp.asarray(quiet)[None, :]
        count = jnp.sum(silent.astype(jnp.float32), axis=1, keepdims=True)
        part = jnp.where(count > 0, curious, 0.0)
        law = (1 - part) * law + part * silent.astype(jnp.float32) / jnp.maximum(count, 1)
        arm, _ = arms_.drawn(arms, law, signals.active, arms_.key_of(state.rounds, NAME))
        return arms_.choice_of(arms, arm, law)

    def update(
        params: PyTree, state: Hedge, signals: Signals, choice: Choice, _: Any, __: Any, feedback: Feedback
    ) -> Hedge:
        state, costs = arms_.begun(params, state), arms_.cost_of(params, kinds)
        there = arms_.at_hand(arms, signals, arms_.times_of(arms, costs, signals))
        gain, heard = outcomes(arms, costs, signals, feedback, rates_of(state.taken))
        heard &= there & (signals.active & (feedback.emitted > 0))[:, None]
        weights = spread(reweighed(state.weights, gain, heard, rate), share)
        return Hedge(weights, counted(state.taken, feedback), state.rounds + 1, arms_.still_told(choice))

    return Selector("hedge", init, choose, update, feedback=True, carry=arms_.carry)


def rates_of(taken: Float[Array, "N A 2"]) -> Float[Array, "N A"]:
    """How often drafts of each source and depth are taken, given that the one before was."""
    return (taken[..., 0] + NAIVE[0]) / (taken[..., 1] + NAIVE[1])


def counted(taken: Float[Array, "N A 2"], feedback: Feedback) -> Float[Array, "N A 2"]:
    """With the round's drafts; a source and depth forgets by what is new of it."""
    known = feedback.known.astype(jnp.float32)
    new = jnp.sum(jnp.stack([known * feedback.chance, known], -1), axis=0)
    return taken * (FADES ** new[..., 1])[..., None] + new


def outcomes(
    arms: Arms, costs: CostTable, signals: Signals, feedback: Feedback, rates: Float[Array, "N A"]
) -> tuple[Float[Array, "B M"], Bool[Array, "B M"]]:
    """The reward that every arm would have had in the round, and whether the round tells anything of it.

    emitted  5 8 2      drafts  5 8 9 4  ->  2 taken of 3 or more        drafts  5 8 2 7  ->  3, and 7 by its rate
    """
    depth = jnp.arange(feedback.known.shape[2])[None, None, :]
    there = depth < signals.offered[..., None]
    right = feedback.right.astype(jnp.float32)
    follows = jnp.where(there, jnp.where(feedback.known, right, rates[None]), 0.0)
    reached = jnp.pad(jnp.cumprod(follows, axis=2)[..., :-1], ((0, 0), (0, 0), (1, 0)), constant_values=1.0)
    taken = reached * jnp.where(there, jnp.where(feedback.known, feedback.chance, rates[None]), 0.0)
    tokens = 1 + jnp.pad(jnp.cumsum(taken, axis=2), ((0, 0), (0, 0), (1, 0)))
    source, lookahead = np.asarray(arms.source), jnp.asarray(arms.lookahead, jnp.int32)
    length = jnp.minimum(lookahead[None, :], signals.offered[:, source])  # [B, M]
    each = jnp.take_along_axis(tokens[:, source], length[..., None], axis=2)[..., 0]
    flat = jnp.broadcast_to(jnp.asarray(source)[None, :], length.shape).ravel()
    time = arms_.times(arms, costs, signals, flat, length.ravel()).reshape(length.shape)
    told = jnp.any(feedback.known, axis=2)[:, source] | (source == 0)[None, :]
    return jnp.clip(each / time / arms_.best_rate(arms, costs), 0.0, 1.0), told


def reweighed(
    weights: Float[Array, "M"], gain: Float[Array, "B M"], heard: Bool[Array, "B M"], rate: float
) -> Float[Array, "M"]:
    """Logarithms of the weights after a round: those told of share their sum anew, the others keep theirs."""
    among = jax.nn.softmax(jnp.where(heard, weights[None, :], -jnp.inf), axis=1, where=heard)
    mean = jnp.log(jnp.sum(jnp.where(heard, among * jnp.exp(rate * gain), 0.0), axis=1, keepdims=True) + 1e-30)
    return weights + jnp.sum(jnp.where(heard, rate * gain - mean, 0.0), axis=0)


__all__ = ["Hedge", "counted", "hedge", "outcomes", "rates_of", "reweighed"]
