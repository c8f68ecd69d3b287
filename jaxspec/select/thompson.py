"""Thompson sampling over (source, lookahead): each arm's mean reward is drawn from what is believed, the best is taken.

    mean      (prior x hoped + sum of rewards) / (prior + count)      older rounds counting less
    variance  (prior x SPREAD^2 + sum of squares about the mean) / (prior + count)
    draw      mean + sqrt(variance / (prior + count)) x normal

hoped: the reward of an arm whose drafts are taken with chance NAIVE. The noise is a function of the number of rounds
alone, the same for all rows, so that a run that is repeated chooses the same.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxspec.contracts import Choice, Selector, Signals, Verdict
from jaxspec.select import arms as arms_
from jaxspec.select.kinds import Kinds
from jaxspec.typing import PyTree

NAIVE = 0.6
SPREAD = 0.15
"""Standard deviation of a round's reward before anything was seen."""

NAME = 0x7503


class Thompson(NamedTuple):
    """What evolves; float32 but for the rounds."""

    plays: Float[Array, "M"]  # rounds of each arm, older ones counting less
    total: Float[Array, "M"]  # their rewards
    squares: Float[Array, "M"]  # of their rewards
    rounds: Int[Array, ""]  # int32
    told: Any  # dict of [B] or [B, N], for people; empty in what is carried from call to call


@functools.lru_cache(maxsize=256)
def thompson(kinds: Kinds, *, keep: float = 0.995, prior: float = 1.0) -> Selector:
    """Its parameters are `SelectorParams`, of which it reads the costs, or () to guess them.

    Args:
        keep: what a round of a row leaves of earlier ones. Static.
        prior: rounds that what is hoped of an arm counts for. Static.

    Source: Thompson 1933; Agrawal and Goyal 2013 for Gaussian draws (arXiv:1209.3353), and Raj and Kalyani 2017 for
    discounting (arXiv:1707.09727).
    """
    arms = arms_.arms_of(kinds)

    def init(rows: int, _: int) -> Thompson:
        zeros = lambda: jnp.zeros(len(arms), jnp.float32)  # noqa: E731 - each a buffer of its own: they are donated
        return Thompson(zeros(), zeros(), zeros(), jnp.int32(0), arms_.nothing_told(arms, rows))

    def choose(params: PyTree, state: Thompson, signals: Signals) -> Choice:
        state = arms_.begun(params, state)
        costs = arms_.cost_of(params, kinds)
        time, best = arms_.times_of(arms, costs, signals), arms_.best_rate(arms, costs)
        lookahead = jnp.asarray(arms.lookahead, jnp.float32)
        hoped = (1 - NAIVE ** (lookahead + 1)) / (1 - NAIVE) / time / best
        mean, spread = believed(state.plays, state.total, state.squares, hoped, prior)
        noise = jax.random.normal(arms_.key_of(state.rounds, NAME), mean.shape, jnp.float32)
        worth = arms_.weighed(arms, mean + spread * noise, signals, 1 / time / best)
        arm = arms_.picked(arms, worth, arms_.at_hand(arms, signals, time), signals.active)
        return arms_.choice_of(arms, arm, worth)

    def update(
        params: PyTree, state: Thompson, signals: Signals, choice: Choice, _: Any, verdict: Verdict, __: Any
    ) -> Thompson:
        state, arm = arms_.begun(params, state), arms_.played(arms, choice)
        reward = arms_.rewards(arms, arms_.cost_of(params, kinds), signals, choice, arm, verdict.count)
        mine = arms_.credit(arms, arm, signals, verdict.count)
        kept = keep ** jnp.sum(mine)
        return Thompson(
            kept * state.plays + jnp.sum(mine, axis=0),
            kept * state.total + jnp.einsum("bm,b->m", mine, reward),
            kept * state.squares + jnp.einsum("bm,b->m", mine, reward**2),
            state.rounds + 1,
            arms_.still_told(choice),
        )

    return Selector("thompson", init, choose, update, carry=arms_.carry)


def believed(
    count: Float[Array, "M"],
    total: Float[Array, "M"],
    squares: Float[Array, "M"],
    hoped: Float[Array, "M"],
    prior: float,
) -> tuple[Float[Array, "M"], Float[Array, "M"]]:
    """Mean of every arm's reward, and the standard deviation of what is believed of that mean."""
    size = prior + count
    mean = (prior * hoped + total) / size
    about = squares - 2 * mean * total + count * mean**2 + prior * (SPREAD**2 + (hoped - mean) ** 2)
    return mean, jnp.sqrt(jnp.maximum(about, 0.0)) / size


__all__ = ["NAIVE", "SPREAD", "Thompson", "believed", "thompson"]
