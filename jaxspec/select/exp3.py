"""Exp3.S over (source, lookahead): exponential weights on rewards divided by the chance of having been seen.

    law     (1 - mix) x weights of the arms at hand, and mix spread evenly over them
    reward  x = (reward - mean reward) / law[arm] for the arm that ran, 0 for the others
    weights w = w exp(rate x), then a share of all weight is spread evenly, so that a bad arm can come back

A bandit for an adversary: it draws its arms, and assumes nothing of how rewards come about. The draw is a function of
the number of rounds alone.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxspec.contracts import Choice, Selector, Signals, Verdict
from jaxspec.select import arms as arms_
from jaxspec.select.arms import Arms
from jaxspec.select.kinds import Kinds
from jaxspec.typing import PyTree

NAME = 0x3E53
MEMORY = 0.95
"""What a round leaves of the mean reward."""


class Exp3(NamedTuple):
    """What evolves; float32 but for the rounds."""

    weights: Float[Array, "M"]  # logarithms; they add to 1
    mean: Float[Array, ""]  # reward of late
    rounds: Int[Array, ""]  # int32
    told: Any  # dict of [B] or [B, N], for people; empty in what is carried from call to call


@functools.lru_cache(maxsize=256)
def exp3(kinds: Kinds, *, rate: float = 0.1, mix: float = 0.05, share: float = 1e-3) -> Selector:
    """Its parameters are `SelectorParams`, of which it reads the costs, or () to guess them.

    Args:
        rate: of learning, in shares of the best reward there can be. Static.
        mix: how much of the law is spread evenly. Static.
        share: how much of all weight is spread evenly after a round. Static.

    Source: Auer, Cesa-Bianchi, Freund and Schapire 2002, "The nonstochastic multiarmed bandit problem", Exp3.S; what is
    subtracted from the reward changes no expectation, and takes most of the noise.
    """
    arms = arms_.arms_of(kinds)

    def init(rows: int, _: int) -> Exp3:
        even = jnp.full(len(arms), -jnp.log(float(len(arms))), jnp.float32)
        return Exp3(even, jnp.float32(0), jnp.int32(0), arms_.nothing_told(arms, rows))

    def drawn(params: PyTree, state: Exp3, signals: Signals) -> tuple[Array, Array, Array]:
        time = arms_.times_of(arms, arms_.cost_of(params, kinds), signals)
        law = mixed(awake(arms, state.weights, signals), arms_.at_hand(arms, signals, time), mix)
        return (*arms_.drawn(arms, law, signals.active, arms_.key_of(state.rounds, NAME)), law)

    def choose(params: PyTree, state: Exp3, signals: Signals) -> Choice:
        arm, _, law = drawn(params, arms_.begun(params, state), signals)
        return arms_.choice_of(arms, arm, law)

    def update(
        params: PyTree, state: Exp3, signals: Signals, choice: Choice, _: Any, verdict: Verdict, __: Any
    ) -> Exp3:
        state = arms_.begun(params, state)
        _, chance, _ = drawn(params, state, signals)  # as in `choose`: the state is the same
        arm = arms_.played(arms, choice)
        reward = arms_.rewards(arms, arms_.cost_of(params, kinds), signals, choice, arm, verdict.count)
        mine = arms_.credit(arms, arm, signals, verdict.count)
        ran = jnp.sum(mine)
        mean = jnp.where(state.rounds == 0, jnp.sum(mine * reward[:, None]) / jnp.maximum(ran, 1), state.mean)
        seen = jnp.where(chance > 0, mine * (reward - mean)[:, None] / jnp.maximum(chance, 1e-6), 0.0)
        weights = spread(state.weights + jnp.clip(rate * jnp.sum(seen, axis=0), -1.0, 1.0), share)
        kept = MEMORY**ran
        fresh = kept * mean + (1 - kept) * jnp.sum(mine * reward[:, None]) / jnp.maximum(ran, 1)
        return Exp3(weights, fresh, state.rounds + 1, arms_.still_told(choice))

    return Selector("exp3", init, choose, update, carry=arms_.carry)


def awake(arms: Arms, weights: Float[Array, "M"], signals: Signals) -> Float[Array, "B M"]:
    """Each row's weights, logarithms: an arm counts as often as the caller's weight of its source says."""
    rows = jnp.broadcast_to(weights[None, :], (len(signals.active), len(arms)))
    if signals.steering is None:
        return rows
    return rows + jnp.log(jnp.maximum(signals.steering.weights[:, jnp.asarray(arms.source)], 1e-30))


def mixed(weights: Float[Array, "B M"], there: Bool[Array, "B M"], mix: float) -> Float[Array, "B M"]:
    """The law of each row: its weights among the arms at hand, and a part that is even."""
    law = jax.nn.softmax(jnp.where(there, weights, -jnp.inf), axis=1)
    return (1 - mix) * law + mix * there.astype(jnp.float32) / jnp.sum(there.astype(jnp.float32), axis=1, keepdims=True)


def spread(weights: Float[Array, "M"], share: float) -> Float[Array, "M"]:
    """Logarithms of weights that add to 1, a share of it even."""
    return jnp.log((1 - share) * jax.nn.softmax(weights) + share / weights.shape[0])


__all__ = ["Exp3", "awake", "exp3", "mixed", "spread"]
