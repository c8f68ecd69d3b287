"""Discounted UCB over (source, lookahead): the arm of the largest mean reward and bonus for having been tried little.

    index = total / count + explore sqrt(log n / count)      n = sum of counts; all fade by `keep` a round

A bandit: it learns from the round that ran alone. What all rows of a step bring counts together.
"""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxspec.contracts import Choice, Selector, Signals, Verdict
from jaxspec.select import arms as arms_
from jaxspec.select.kinds import Kinds
from jaxspec.typing import PyTree

UNTRIED = 1e3
"""Index of an arm that was never tried: above any reward and bonus of those that were."""


class UCB(NamedTuple):
    """What evolves; float32 but for the rounds."""

    plays: Float[Array, "M"]  # rounds of each arm, older ones counting less
    total: Float[Array, "M"]  # their rewards
    rounds: Int[Array, ""]  # int32
    told: Any  # dict of [B] or [B, N], for people; empty in what is carried from call to call


@functools.lru_cache(maxsize=256)
def ucb(kinds: Kinds, *, keep: float = 0.995, explore: float = 0.05) -> Selector:
    """Its parameters are `SelectorParams`, of which it reads the costs, or () to guess them.

    Args:
        keep: what a round of a row leaves of earlier ones. Static.
        explore: 2 B sqrt(xi) of the source, in shares of the best reward there can be. Static.

    Source: Garivier and Moulines 2008, "On upper-confidence bound policies for non-stationary bandit problems"
    (arXiv:0805.3415).
    """
    arms = arms_.arms_of(kinds)

    def init(rows: int, _: int) -> UCB:
        zeros = lambda: jnp.zeros(len(arms), jnp.float32)  # noqa: E731 - each a buffer of its own: they are donated
        return UCB(zeros(), zeros(), jnp.int32(0), arms_.nothing_told(arms, rows))

    def choose(params: PyTree, state: UCB, signals: Signals) -> Choice:
        state = arms_.begun(params, state)
        costs = arms_.cost_of(params, kinds)
        time = arms_.times_of(arms, costs, signals)
        index = upper(state.plays, state.total, explore)
        worth = arms_.weighed(arms, index, signals, 1 / time / arms_.best_rate(arms, costs))
        arm = arms_.picked(arms, worth, arms_.at_hand(arms, signals, time), signals.active)
        return arms_.choice_of(arms, arm, worth)

    def update(params: PyTree, state: UCB, signals: Signals, choice: Choice, _: Any, verdict: Verdict, __: Any) -> UCB:
        state, arm = arms_.begun(params, state), arms_.played(arms, choice)
        reward = arms_.rewards(arms, arms_.cost_of(params, kinds), signals, choice, arm, verdict.count)
        mine = arms_.credit(arms, arm, signals, verdict.count)
        kept = keep ** jnp.sum(mine)
        return UCB(
            kept * state.plays + jnp.sum(mine, axis=0),
            kept * state.total + jnp.einsum("bm,b->m", mine, reward),
            state.rounds + 1,
            arms_.still_told(choice),
        )

    return Selector("ucb", init, choose, update, carry=arms_.carry)


def upper(count: Float[Array, "M"], total: Float[Array, "M"], explore: float) -> Float[Array, "M"]:
    """The index of every arm."""
    tried = count > 1e-6
    some = jnp.where(tried, count, 1.0)
    index = total / some + explore * jnp.sqrt(jnp.log(jnp.maximum(jnp.sum(count), 1.0)) / some)
    return jnp.where(tried, index, UNTRIED)


__all__ = ["UCB", "ucb", "upper"]
