"""From chances and costs to a choice: the table of what a step may do, and its best entry."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxspec.contracts import Choice, Proposal, Signals, Stop
from jaxspec.select.cost import CostTable, by_drafts
from jaxspec.select.kinds import Kinds
from jaxspec.typing import RowFloats, Rows


class Table(NamedTuple):
    """What a step may do; E entries."""

    paid: Int[Array, "E"]  # the source that costs a pass or rides; 0: none
    longest: Int[Array, "E"]  # drafts of a free source at the most
    tokens: Float[Array, "B E"]  # expected of each row
    own: Float[Array, "B E"]  # by the paid source
    cost: Float[Array, "E"]
    free: Float[Array, "B N A+1"]  # expected of each free source by its drafts
    drawn: Float[Array, "B N"]  # drafts that a paid source is expected to draw
    models: tuple[int, ...]  # sources of the last entries, one each. Static


class Plan(NamedTuple):
    """The step's entry, and what it means for each row."""

    entry: Int[Array, ""]
    source: Rows
    lookahead: Rows
    rate: Float[Array, "E"]


def free_tokens(chance: Float[Array, "B N A"], signals: Signals, kinds: Kinds) -> Float[Array, "B N A+1"]:
    """Tokens that a row expects of a round with k drafts of a free source: 1 for none, and no more than it offers.

    E = 1 + w sum_{j <= k} prod_{i <= j} chance_i, with the weight w that the caller gave the source.
    """
    there = jnp.arange(chance.shape[2])[None, None, :] < signals.offered[..., None]
    there &= jnp.asarray(kinds.free)[None, :, None]
    gain = jnp.cumsum(jnp.where(there, jnp.cumprod(chance, axis=2), 0.0), axis=2)
    return 1 + jnp.pad(_weighed(gain, signals), ((0, 0), (0, 0), (1, 0)))


def paid_tokens(
    chance: Float[Array, "B N A"], goes: Float[Array, "B N A"], signals: Signals, tails: Float[Array, "N"]
) -> tuple[Float[Array, "B N"], Float[Array, "B N"]]:
    """Tokens expected of a source that stops by itself, its tail included, and the drafts it is expected to draw.

    Args:
        chance: that a draft is drawn and taken, given that the one before it was.
        goes: that a draft is drawn, given that the one before it was; the first always is.
        tails: tokens that a source's tails have brought where its own drafts were all taken.
    """
    depth = jnp.arange(chance.shape[2])[None, None, :]
    there = depth < signals.offered[..., None]
    taken = jnp.where(there, jnp.cumprod(chance, axis=2), 0.0)
    drawn = jnp.sum(jnp.where(there, jnp.cumprod(jnp.where(depth == 0, 1.0, goes), axis=2), 0.0), axis=2)
    ends = 1 - jnp.where(there, goes, 0.0)[..., 1:]
    ends = jnp.pad(ends, ((0, 0), (0, 0), (0, 1)), constant_values=1.0)  # that a draft is the last
    gain = jnp.sum(taken * (1 + ends * tails[None, :, None]), axis=2)
    return 1 + _weighed(gain[..., None], signals)[..., 0], drawn


def _weighed(gain: Float[Array, "B N X"], signals: Signals) -> Float[Array, "B N X"]:
    return gain if signals.steering is None else gain * signals.steering.weights[..., None]


def table_of(
    costs: CostTable,
    signals: Signals,
    chance: Float[Array, "B N A"],
    goes: Float[Array, "B N A"],
    tails: tuple[Float[Array, "N"], Float[Array, "N"]],
    kinds: Kinds,
) -> Table:
    """Every entry with its expected tokens and cost.

    Args:
        tails: tokens that a paid source's tails have brought where its own drafts were all taken, and drafts in them.
    """
    free = free_tokens(chance, signals, kinds)
    paid, drawn = paid_tokens(chance, goes, signals, tails[0])
    window = by_drafts(costs, signals, kinds.windows)  # [A+1]
    most = kinds.lookahead
    kept = jnp.asarray(kinds.free) & (jnp.arange(len(kinds.names)) != kinds.carrier)
    best = jnp.max(jnp.where(kept[None, :, None], free, 1.0), axis=1)  # [B, A+1]
    rows = best.shape[0]
    steps = jnp.arange(most + 1)
    parts = [(jnp.zeros_like(steps), steps, jnp.ones_like(best), window)]
    if kinds.carrier:
        asked = jnp.maximum(free[:, kinds.carrier, 1:], _curious(chance, signals, kinds))
        parts.append((jnp.full(most, kinds.carrier), steps[1:], asked, window[1:] + costs.ride))
    for model in kinds.models:
        going = jnp.max(jnp.where(signals.active, drawn[:, model], 0.0))
        wide = jnp.minimum(going + tails[1][model], most)
        lag = jnp.max(jnp.where(signals.active, signals.lag[:, model], 0)).astype(jnp.float32)
        cost = between(window, wide) + between(costs.draft[model], going) + costs.lag[model] * lag
        longest = jnp.floor(wide).astype(jnp.int32)[None]
        parts.append((jnp.full(1, model), longest, paid[:, model][:, None], cost[None]))
    source, longest, own, cost = (jnp.concatenate(each, axis=-1) for each in zip(*parts, strict=True))
    own = jnp.broadcast_to(own, (rows, own.shape[-1]))
    return Table(source, longest, jnp.maximum(best[:, longest], own), own, cost, free, drawn, kinds.models)


def _curious(chance: Float[Array, "B N A"], signals: Signals, kinds: Kinds) -> Float[Array, "B A"]:
    """What asking the source that learns in the window is expected to bring, whether or not it has anything yet."""
    room = jnp.max(signals.offered, axis=1) if signals.room is None else signals.room
    there = jnp.arange(chance.shape[2])[None, :] < jnp.minimum(room, 1)[:, None]
    weight = 1.0 if signals.steering is None else signals.steering.weights[:, kinds.carrier][:, None]
    return 1 + weight * jnp.cumsum(jnp.where(there, chance[:, kinds.carrier], 0.0), axis=1)


def between(table: Float[Array, "X"], place: Float[Array, ""]) -> Float[Array, ""]:
    """A table at a place between its entries, by a straight line."""
    low = jnp.clip(jnp.floor(place), 0, table.shape[0] - 1).astype(jnp.int32)
    high = jnp.minimum(low + 1, table.shape[0] - 1)
    part = place - low.astype(jnp.float32)
    return table[low] * (1 - part) + table[high] * part


def pick(table: Table, signals: Signals, kinds: Kinds) -> Plan:
    """The entry of the best rate; within it a row takes the paid source where that gives it more than a free one."""
    rate = jnp.sum(jnp.where(signals.active[:, None], table.tokens, 0.0), axis=0) / table.cost
    plain = (table.paid == 0) & (table.longest == 0)
    if signals.steering is not None:
        budget = jnp.min(jnp.where(signals.active, signals.steering.latency_budget, jnp.inf))
        rate = jnp.where(plain | (table.cost <= budget), rate, 0.0)
    entry = jnp.argmax(rate)  # the first of equals: the narrowest window, no paid source
    longest, paid = table.longest[entry], table.paid[entry]
    offers = table.free[:, :, longest]
    kept = jnp.asarray(kinds.free) & (jnp.arange(len(kinds.names)) != kinds.carrier)
    offers = jnp.where(kept[None, :], offers, 1.0)
    source = jnp.argmax(offers, axis=1).astype(jnp.int32)
    lookahead = jnp.where(source > 0, longest, 0)
    pays = table.own[:, entry] > jnp.max(offers, axis=1)
    alone = jnp.where(jnp.asarray(kinds.passes)[paid], kinds.lookahead, longest)  # a pass stops by itself
    source = jnp.where(pays, paid, source).astype(jnp.int32)
    return Plan(entry, source, jnp.where(pays, alone, lookahead).astype(jnp.int32), rate)


def stop_of(costs: CostTable, paid: Int[Array, ""], intercept: RowFloats, slope: RowFloats) -> Stop:
    """When drafts of a source that costs a pass end, by what it costs and what its confidence means in each row."""
    most = costs.draft.shape[1] - 1
    width = (costs.verify[-1] - costs.verify[0]) / max(most, 1)
    draft = (costs.draft[paid, most] - costs.draft[paid, min(1, most)]) / max(most - 1, 1)
    base = costs.verify[0] + jnp.maximum(costs.draft[paid, min(1, most)] - draft, 0.0)
    each = (jnp.broadcast_to(value, intercept.shape).astype(jnp.float32) for value in (base, draft + width))
    return Stop(intercept, slope, *each)


def tail_of(
    costs: CostTable,
    signals: Signals,
    tokens: Float[Array, "B N X"],
    chance: Float[Array, "B A"],
    choice: Choice,
    head: Proposal,
    kinds: Kinds,
) -> tuple[Rows, Rows]:
    """The free source, and how many of its drafts, that raise a round's tokens per time most where its head ends.

    Args:
        signals: of the free sources at the head's end.
        tokens: expected of the free sources from there on.
        chance: that each draft of the head is taken.
    """
    depth = jnp.arange(chance.shape[1])[None, :]
    chain = jnp.cumprod(jnp.where(depth < head.count[:, None], chance, 1.0), axis=1)
    before = 1 + jnp.sum(jnp.where(depth < head.count[:, None], chain, 0.0), axis=1)
    window = by_drafts(costs, signals, kinds.windows)
    steps = jnp.arange(kinds.lookahead + 1)[None, :]
    wide = window[jnp.minimum(head.count[:, None] + steps, kinds.lookahead)]
    cost = wide + costs.draft[choice.source, head.count][:, None]  # [B, A+1]
    gain = chain[:, -1][:, None, None] * (tokens - 1)
    fits = (head.count[:, None] + steps <= kinds.lookahead)[:, None, :]
    rate = jnp.where(fits, (before[:, None, None] + gain) / cost[:, None, :], 0.0)
    at = jnp.argmax(rate.reshape(len(rate), -1), axis=1)  # the first of equals: source 0, no tail
    width = kinds.lookahead + 1
    source, lookahead = (at // width).astype(jnp.int32), (at % width).astype(jnp.int32)
    return jnp.where(lookahead > 0, source, 0), lookahead


__all__ = ["Plan", "Table", "between", "free_tokens", "paid_tokens", "pick", "stop_of", "table_of", "tail_of"]
