"""Arms of the bandits: a source with a lookahead, what a round of each costs, and one draw of them for a step.

    sources none, lookup, lm; 7 drafts   ->   none 0 | lookup 1 2 3 5 7 | lm 1 2 3 5 7

    reward of a round = tokens / time / best      in [0, 1], best: the rate of a round whose drafts are all taken

A source that costs a pass, or whose branch rides, is run for a step, not for a row: `picked` and `drawn` choose one of
these for all rows, or none, and then an arm for each row among the others and that one's.
"""

import dataclasses
import functools
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxspec.contracts import Choice, Signals
from jaxspec.select.cost import CostTable, by_drafts, guess, widths_of
from jaxspec.select.kinds import Kinds
from jaxspec.typing import PyTree, RowFloats, RowMask, Rows

STEPS = (1, 2, 3, 5, 7, 11, 15, 23, 31, 47, 63)


@dataclasses.dataclass(frozen=True)
class Arms:
    """M arms; static. Arm 0 is plain decoding."""

    kinds: Kinds
    source: tuple[int, ...]
    lookahead: tuple[int, ...]
    below: tuple[int, ...]  # the next smaller lookahead of the same source, 0 for the smallest; -1 for arm 0

    def __len__(self) -> int:
        return len(self.source)

    @property
    def shared(self) -> tuple[int, ...]:
        """Sources that run for a step: those that cost a pass, and the one whose branch rides."""
        return (*self.kinds.models, *((self.kinds.carrier,) if self.kinds.carrier else ()))


@functools.lru_cache(maxsize=256)
def arms_of(kinds: Kinds) -> Arms:
    """Every source with lookaheads from 1 to the most, few of them; those near the most are left out.

    most 7: 1 2 3 5 7      most 16: 1 2 3 5 7 11 16
    """
    most = kinds.lookahead
    steps = (*(step for step in STEPS if 4 * step <= 3 * most), *((most,) if most else ()))
    each = [(n, step, below) for n in range(1, len(kinds.names)) for step, below in zip(steps, (0, *steps))]  # noqa: B905
    source, lookahead, below = zip((0, 0, -1), *each, strict=True)
    return Arms(kinds, source, lookahead, below)


def cost_of(params: PyTree, kinds: Kinds) -> CostTable:
    """Of the selector's parameters; a guess where there are none."""
    return params.cost if params else guess(kinds.passes, kinds.nodes, kinds.windows)


def times(
    arms: Arms, costs: CostTable, signals: Signals, source: Int[Array, "X"], lookahead: Int[Array, "X"]
) -> Float[Array, "X"]:
    """Time of rounds of these sources and lookaheads, at the load and lag of the row that is most loaded and lags most.

    A source whose branch rides costs that also where it has nothing to offer.
    """
    lag = jnp.max(jnp.where(signals.active[:, None], signals.lag, 0), axis=0).astype(jnp.float32)
    behind = jnp.where(lookahead > 0, (costs.lag * lag)[source], 0.0)
    window = by_drafts(costs, signals, arms.kinds.windows)[lookahead]
    return window + costs.draft[source, lookahead] + behind + _ride(arms, costs, source)


def times_of(arms: Arms, costs: CostTable, signals: Signals) -> Float[Array, "M"]:
    """Time of a round of every arm."""
    return times(arms, costs, signals, jnp.asarray(arms.source), jnp.asarray(arms.lookahead))


def _ride(arms: Arms, costs: CostTable, source: Int[Array, "X"]) -> Float[Array, "X"]:
    return jnp.where((source == arms.kinds.carrier) & (source > 0), costs.ride, 0.0)


def best_rate(arms: Arms, costs: CostTable) -> Float[Array, ""]:
    """Tokens per time of the arm that would be best if every draft were taken, with nothing to catch up and no load."""
    source, lookahead = jnp.asarray(arms.source), jnp.asarray(arms.lookahead)
    window = costs.verify[widths_of(arms.kinds.windows, arms.kinds.lookahead)[np.asarray(arms.lookahead)]]
    time = window + costs.draft[source, lookahead] + _ride(arms, costs, source)
    return jnp.max((1 + lookahead).astype(jnp.float32) / time)


def at_hand(arms: Arms, signals: Signals, time: Float[Array, "M"]) -> Bool[Array, "B M"]:
    """Arms that a row may take: of what is offered, within the latency budget; plain decoding always.

    Of 4 drafts the arms 1 2 3 5 take 1 2 3 4. The source whose branch rides may be asked for its fewest when it has
    nothing, since that is how it comes to have something.
    """
    there = signals.offered[:, np.asarray(arms.source)] > jnp.asarray(arms.below)[None, :]
    asks = (np.asarray(arms.source) == arms.kinds.carrier) & (np.asarray(arms.below) == 0) & bool(arms.kinds.carrier)
    budget = jnp.float32(jnp.inf)
    allowed = signals.active if signals.room is None else signals.active & (signals.room > 0)
    if signals.steering is not None:
        allowed = allowed & (signals.steering.weights[:, arms.kinds.carrier] > 0)
        budget = jnp.min(jnp.where(signals.active, signals.steering.latency_budget, jnp.inf))
    there = there | (jnp.asarray(asks)[None, :] & allowed[:, None])
    return (there & (time <= budget)[None, :]) | (jnp.arange(len(arms)) == 0)[None, :]


def weighed(arms: Arms, value: Float[Array, "M"], signals: Signals, plain: Float[Array, "M"]) -> Float[Array, "B M"]:
    """What arms are worth to each row: what they gain over one token in the same time, times the caller's weights.

    Args:
        plain: reward of one token in each arm's time.
    """
    if signals.steering is None:
        return jnp.broadcast_to(value[None, :], (len(signals.active), len(arms)))
    weights = signals.steering.weights[:, np.asarray(arms.source)]
    return plain[None, :] + weights * (value - plain)[None, :]


def groups(arms: Arms) -> Bool[np.ndarray, "G M"]:
    """Arms by what runs for a step: nothing, or one of the shared sources."""
    source = np.asarray(arms.source)
    return np.stack([~np.isin(source, arms.shared), *(source == each for each in arms.shared)])


def picked(arms: Arms, score: Float[Array, "B M"], there: Bool[Array, "B M"], active: RowMask) -> Rows:
    """Each row's best arm, int32, given the one shared source, or none, that the active rows gain most by."""
    score = jnp.where(there, score, -jnp.inf)
    each = jnp.stack([jnp.max(jnp.where(jnp.asarray(g)[None, :], score, -jnp.inf), axis=1) for g in groups(arms)])
    gain = jnp.sum(jnp.where(active[None, :], jnp.maximum(each - each[:1], 0.0), 0.0), axis=1)
    group = jnp.asarray(groups(arms))
    kept = group[0] | group[jnp.argmax(gain)]  # nothing shared where nothing is gained
    return jnp.argmax(jnp.where(kept[None, :], score, -jnp.inf), axis=1).astype(jnp.int32)


def drawn(arms: Arms, law: Float[Array, "B M"], active: RowMask, key: Array) -> tuple[Rows, Float[Array, "B M"]]:
    """An arm of each row by its law, int32, and the probability of every arm; the key is consumed.

    With one row that is the law. With several, what runs for the step is drawn by the rows' mean law, then each row's
    arm among that source's, or among those of no shared source where the row has none of it.

    Args:
        law: probabilities that add to 1; 0 of arms that are not at hand, above 0 of arm 0.
    """
    group = jnp.asarray(groups(arms).astype(np.float32))
    mass = law @ group.T  # [B, G]
    runs = jnp.sum(jnp.where(active[:, None], mass, 0.0), axis=0) / jnp.maximum(jnp.sum(active.astype(jnp.float32)), 1)
    runs = jnp.where(jnp.any(active), runs, (jnp.arange(len(group)) == 0).astype(jnp.float32))
    own = law[:, None, :] * group[None, :, :] / jnp.maximum(mass, 1e-30)[..., None]  # [B, G, M]
    own = jnp.where((mass > 0)[..., None], own, own[:, :1])
    first, second = jax.random.split(key)
    now = jax.random.categorical(first, jnp.log(runs))
    arm = jax.random.categorical(second, jnp.log(own[:, now]), axis=-1)
    return arm.astype(jnp.int32), jnp.einsum("g,bgm->bm", runs, own)


def choice_of(arms: Arms, arm: Rows, value: Float[Array, "B M"]) -> Choice:
    """The choice of these arms; told the arm, and for people what each source is worth at its best lookahead."""
    source, lookahead = jnp.asarray(arms.source, jnp.int32)[arm], jnp.asarray(arms.lookahead, jnp.int32)[arm]
    by_source = np.arange(len(arms.kinds.names))[:, None] == np.asarray(arms.source)[None, :]
    worth = jnp.max(jnp.where(jnp.asarray(by_source)[None], value[:, None, :], -jnp.inf), axis=2)
    told = {"arm": arm, "lookahead": lookahead.astype(jnp.float32), "worth": worth}
    return Choice(source, lookahead, told=told)


def nothing_told(arms: Arms, rows: int) -> dict[str, Array]:
    """Before the first round, what a selector's state keeps of `Choice.told`."""
    return {"lookahead": jnp.zeros(rows, jnp.float32), "worth": jnp.zeros((rows, len(arms.kinds.names)), jnp.float32)}


def still_told(choice: Choice) -> dict[str, Array]:
    """What a selector's state keeps of `Choice.told`."""
    return {name: value for name, value in (choice.told or {}).items() if name != "arm"}


def played(arms: Arms, choice: Choice) -> Rows:
    """The arm that each row's round was one of, int32, whoever has chosen it: a caller may have pinned a source."""
    source, lookahead, below = (jnp.asarray(each)[None, :] for each in (arms.source, arms.lookahead, arms.below))
    inside = (choice.lookahead[:, None] > below) & (choice.lookahead[:, None] <= lookahead)
    arm = jnp.argmax((source == choice.source[:, None]) & inside, axis=1).astype(jnp.int32)
    if choice.told is None or not arms.kinds.carrier:
        return arm
    asked = choice.told["arm"]  # the source that rides was asked and had nothing
    rode = (source[0][asked] == arms.kinds.carrier) & (choice.lookahead == 0)
    return jnp.where(rode, asked, arm)


def rewards(arms: Arms, costs: CostTable, signals: Signals, choice: Choice, arm: Rows, tokens: Rows) -> RowFloats:
    """Reward of each row's round, float32; 0 of rows that emitted nothing."""
    source = jnp.asarray(arms.source)[arm]
    time = times(arms, costs, signals, source, choice.lookahead)
    return jnp.clip(tokens.astype(jnp.float32) / time / best_rate(arms, costs), 0.0, 1.0)


def credit(arms: Arms, arm: Rows, signals: Signals, tokens: Rows) -> Float[Array, "B M"]:
    """1 where a row's round says something of an arm."""
    mine = arm[:, None] == jnp.arange(len(arms))[None, :]
    return (mine & (signals.active & (tokens > 0))[:, None]).astype(jnp.float32)


StateT = TypeVar("StateT", bound=Any)
"""A bandit's state: a NamedTuple with `rounds` and `told`."""


def begun(params: PyTree, state: StateT) -> StateT:
    """The state; before the first round, what an earlier call has learnt, where the parameters' prior is that."""
    prior = getattr(params, "prior", None)
    if type(prior) is not type(state):
        return state
    names = (name for name in state._fields if name != "told")
    return state._replace(
        **{name: jnp.where(state.rounds == 0, getattr(prior, name), getattr(state, name)) for name in names}
    )


def carry(params: PyTree, state: StateT) -> StateT:
    """What the next call may begin with, in place of the parameters' prior: all but what was told."""
    return begun(params, state)._replace(told=())


def key_of(rounds: Int[Array, ""], name: int) -> Array:
    """The key of a round: a function of the number of rounds alone, so that a run that is repeated draws the same.

    Args:
        name: of the selector, so that no two draw alike.
    """
    return jax.random.fold_in(jax.random.key(name), rounds)


__all__ = [
    "Arms",
    "arms_of",
    "at_hand",
    "begun",
    "best_rate",
    "carry",
    "choice_of",
    "cost_of",
    "credit",
    "drawn",
    "groups",
    "key_of",
    "nothing_told",
    "picked",
    "played",
    "rewards",
    "still_told",
    "times",
    "times_of",
    "weighed",
]
