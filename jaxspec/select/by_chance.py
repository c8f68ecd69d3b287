"""From the chances that a selector believes in to its choice, and to what it tells people: the same for all of them."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxspec.contracts import Choice, Proposal, Signals
from jaxspec.sampling.confidence import trusted
from jaxspec.select.cost import CostTable
from jaxspec.select.kinds import Kinds
from jaxspec.select.plan import Plan, Table, free_tokens, pick, stop_of, tail_of
from jaxspec.typing import RowFloats, Rows

Trust = Callable[[Rows], tuple[RowFloats, RowFloats]]
"""What the confidence of each row's source means: intercept and slope of its log-odds."""

BY_ROW = ("lookahead", "tokens per time", "signal top", "signal margin", "signal entropy")
BY_SOURCE = ("expected tokens", "drafts drawn", "signal match", "signal confidence", "signal lag")


def choose_by(costs: CostTable, table: Table, signals: Signals, kinds: Kinds, trust: Trust, *, stops: bool) -> Choice:
    """The best entry of what a step may do (`jaxspec.select.plan.table_of`), told.

    Args:
        stops: whether drafts of a source that costs a pass end where one more is not worth its time. Static.
    """
    plan = pick(table, signals, kinds)
    choice = Choice(plan.source, plan.lookahead, told=told_of(table, plan, signals))
    if not stops:
        return choice
    # rows of other sources than the entry's do not read it
    return choice._replace(stop=stop_of(costs, table.paid[plan.entry], *trust(plan.source)))


def continue_by(
    costs: CostTable,
    signals: Signals,
    chance: Float[Array, "B N A"],
    choice: Choice,
    head: Proposal,
    kinds: Kinds,
    trust: Trust,
) -> Choice:
    """The choice with its best tail (`jaxspec.select.plan.tail_of`).

    Args:
        signals: of the free sources where the head ends.
        chance: of their drafts there.
    """
    taken = trusted(head.confidence, *trust(choice.source))
    source, lookahead = tail_of(costs, signals, free_tokens(chance, signals, kinds), taken, choice, head, kinds)
    return choice._replace(tail=source, tail_lookahead=lookahead)


def told_of(table: Table, plan: Plan, signals: Signals) -> dict[str, Array]:
    """For people: what each row was asked for, what it expects of each source at its most, and what it has seen."""
    rows, sources = signals.offered.shape
    assert signals.seen is not None
    expects, first = table.free[:, :, -1], table.paid.shape[0] - len(table.models)
    for entry, model in enumerate(table.models, first):
        expects = expects.at[:, model].set(table.own[:, entry])
    sure = jnp.ones((rows, sources), jnp.float32) if signals.confidence is None else signals.confidence
    return {
        "lookahead": plan.lookahead.astype(jnp.float32),
        "expected tokens": expects,
        "drafts drawn": table.drawn,
        "tokens per time": jnp.broadcast_to(jnp.max(plan.rate), (rows,)),
        "signal match": signals.match.astype(jnp.float32),
        "signal confidence": sure,
        "signal lag": signals.lag.astype(jnp.float32),
        "signal top": signals.seen.top,
        "signal margin": signals.seen.margin,
        "signal entropy": signals.seen.entropy,
    }


def nothing_told(rows: int, sources: int) -> dict[str, Array]:
    """Before the first round."""
    by_row = {name: jnp.zeros(rows, jnp.float32) for name in BY_ROW}
    return by_row | {name: jnp.zeros((rows, sources), jnp.float32) for name in BY_SOURCE}


__all__ = ["BY_ROW", "BY_SOURCE", "Trust", "choose_by", "continue_by", "nothing_told", "told_of"]
