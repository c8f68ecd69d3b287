"""Goodput: the source and lookahead that give the most expected tokens for the expected time, here and now.

    paid source m (none, or one that costs a model pass)      rows may take m, or any free source,
    longest lookahead K = 0 .. A                              with at most K drafts each

    rate(m, K) = sum over rows of E[tokens | best source, K] / cost(m, K)          the step takes the best (m, K)

Lookahead 0 is one of the entries, so plain decoding wins where nothing pays. All rows of a step share its cost: with
many rows a wide window is dear, and the lookahead falls by itself.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxspec.contracts import FREE, Choice, DraftSource, Feedback, Selector, Signals
from jaxspec.select.belief import Belief, Prior, context, expected, learn, no_belief, no_prior, trusted
from jaxspec.select.cost import CostTable, guess, price
from jaxspec.typing import PyTree, Rows


@dataclasses.dataclass(frozen=True)
class Kinds:
    """What a selector knows of the setup's sources, source 0 being "none". Static."""

    names: tuple[str, ...]
    paid: tuple[bool, ...]  # costs a model pass, or a branch in the window
    by_match: tuple[bool, ...]  # its context is the length that it matched
    by_law: tuple[bool, ...]  # its context is its first draft's probability
    carrier: int  # index of the source whose branch rides in the window; 0 without one
    nodes: int  # of that branch
    windows: tuple[int, ...]
    lookahead: int


def kinds_of(sources: tuple[DraftSource, ...], windows: tuple[int, ...]) -> Kinds:
    """Of a setup's sources."""
    free = [source.cost == FREE for source in sources]
    branches = [i for i, source in enumerate(sources) if source.branch is not None]
    branch = sources[branches[0]].branch if branches else None
    return Kinds(
        names=tuple(source.name for source in sources),
        paid=tuple(not f or i in branches for i, f in enumerate(free)),
        by_match=tuple(f and not source.law for f, source in zip(free, sources, strict=True)),
        by_law=tuple(f and source.law for f, source in zip(free, sources, strict=True)),
        carrier=branches[0] if branches else 0,
        nodes=0 if branch is None else len(branch.parents) - 1,
        windows=windows,
        lookahead=windows[-1] - 1,
    )


class SelectorParams(NamedTuple):
    """What a selector is given, all traced."""

    cost: CostTable
    prior: Prior
    clusters: Float[Array, "C D"] | None = None


class Goodput(NamedTuple):
    """What evolves."""

    belief: Belief
    asked: Float[Array, "B N"]  # rounds in which the row took the source
    rounds: Rows


@functools.lru_cache(maxsize=256)
def goodput(kinds: Kinds, *, optimism: float = 0.1, forget: float = 0.99) -> Selector:
    """Maximise expected tokens over expected time; see the module.

    Args:
        optimism: how far the estimate of a source that is paid for is raised while it was tried little, times
            sqrt(log(1 + rounds) / (1 + rounds it was tried)), so that it is tried at a rate that decays. Static.
        forget: what an observation is worth after the next one of its cell; 0.99 remembers about a hundred. Static.
    """
    sources, depths = len(kinds.names), kinds.lookahead
    guessed = SelectorParams(guess(kinds.paid, kinds.nodes, kinds.windows), no_prior(sources, depths))

    def init(rows: int, _: int) -> Goodput:
        return Goodput(no_belief(rows, sources, depths), jnp.zeros((rows, sources), jnp.float32), _zeros(rows))

    def choose(params: PyTree, state: Goodput, signals: Signals) -> Choice:
        params = params or guessed
        bins = context(signals, kinds.by_match, kinds.by_law)
        chance, _ = expected(state.belief, params.prior, bins, kinds.by_match)
        chance = jnp.minimum(chance + _bonus(state, kinds.paid, optimism)[None, :, None], 1.0)
        tokens = expected_tokens(chance, signals, kinds)
        return plan(params, tokens, trusted(state.belief, params.prior), signals, kinds)

    def update(
        params: PyTree,
        state: Goodput,
        signals: Signals,
        choice: Choice,
        proposal: Any,
        verdict: Any,
        feedback: Feedback,
    ) -> Goodput:
        del params, proposal, verdict
        bins = context(signals, kinds.by_match, kinds.by_law)
        belief = learn(state.belief, bins, feedback, signals.active, forget=forget)
        mine = (jnp.arange(sources)[None, :] == choice.source[:, None]) & signals.active[:, None]
        return Goodput(belief, state.asked + mine, state.rounds + signals.active)

    return Selector("goodput", init, choose, update, feedback=True, certainty=True)


def _zeros(rows: int) -> Rows:
    return jnp.zeros(rows, jnp.int32)


def _bonus(state: Goodput, paid: tuple[bool, ...], optimism: float) -> Float[Array, "N"]:
    """What is added to the chances of sources that teach nothing unless they are run."""
    rounds = jnp.sum(state.rounds).astype(jnp.float32)
    tried = jnp.sum(state.asked, axis=0)
    return jnp.where(jnp.asarray(paid), optimism * jnp.sqrt(jnp.log1p(rounds) / (1 + tried)), 0.0)


def expected_tokens(chance: Float[Array, "B N A"], signals: Signals, kinds: Kinds) -> Float[Array, "B N A+1"]:
    """Tokens that a row expects of a round with k drafts of a source; 1 for none, and no more than is offered.

    E = 1 + w sum_{j <= k} prod_{i <= j} chance_i, with the weight w that the caller gave the source.
    """
    offered = signals.offered
    if kinds.carrier:  # asked, a source that learns in the window may come to have what it has not
        most = jnp.max(offered, axis=1)
        column = jnp.where(most > 0, jnp.maximum(offered[:, kinds.carrier], 1), 0)
        offered = offered.at[:, kinds.carrier].set(column)
    there = jnp.arange(chance.shape[2])[None, None, :] < offered[..., None]
    gain = jnp.cumsum(jnp.cumprod(chance, axis=2) * there, axis=2)
    if signals.steering is not None:
        gain *= signals.steering.weights[..., None]
    return 1 + jnp.pad(gain, ((0, 0), (0, 0), (1, 0)))


def plan(
    params: SelectorParams,
    tokens: Float[Array, "B N A+1"],
    trust: Float[Array, "B N Q"],
    signals: Signals,
    kinds: Kinds,
) -> Choice:
    """The best entry of the table (paid source, longest lookahead), and every row's own source within it."""
    active, paid = signals.active, jnp.asarray(kinds.paid)
    free = jnp.max(jnp.where(paid[None, :, None], 1.0, tokens), axis=1, keepdims=True)  # [B, 1, A+1]
    best = jnp.where(paid[None, :, None], jnp.maximum(tokens, free), free)  # with paid source n, or none for n = 0
    cost = costs_of(params.cost, signals, kinds)
    rate = jnp.sum(jnp.where(active[:, None, None], best, 0.0), axis=0) / cost  # [N, A+1]
    allowed = (paid | (jnp.arange(len(paid)) == 0))[:, None] & _in_time(signals, cost)
    rate = jnp.where(allowed, rate, -1.0)
    entry = jnp.argmax(rate)
    paid_for, longest = entry // rate.shape[1], entry % rate.shape[1]
    usable = ~paid | (jnp.arange(len(paid)) == paid_for)
    mine = jnp.where(usable[None, :], tokens[:, :, longest], 0.0)
    source = jnp.argmax(mine, axis=1).astype(jnp.int32)  # the first of equals: none, where nothing is gained
    lookahead = jnp.where(source > 0, longest, 0).astype(jnp.int32)
    told = {"expected tokens": mine, "rate": jnp.broadcast_to(jnp.max(rate, axis=1)[None], mine.shape)}
    drafting = jnp.maximum(jnp.sum(active & (source == paid_for)), 1)
    reach = _worth(params.cost, paid_for, jnp.max(rate) / drafting)
    learned = jnp.take_along_axis(trust, source[:, None, None], axis=1)[:, 0]
    return Choice(source, lookahead, reach=jnp.broadcast_to(reach, source.shape), trust=learned, told=told)


def costs_of(costs: CostTable, signals: Signals, kinds: Kinds) -> Float[Array, "N A+1"]:
    """Of a step by its paid source and longest lookahead, at the load of the row that is most loaded."""
    load = jnp.float32(0) if signals.steering is None else jnp.max(jnp.where(signals.active, signals.steering.load, 0))
    cost = price(costs, kinds.windows, load, signals.lag, signals.active)
    if kinds.carrier:
        cost = cost.at[kinds.carrier, 1:].add(costs.ride)
    return cost


def _in_time(signals: Signals, cost: Float[Array, "N A+1"]) -> Array:
    """Entries within the tightest budget of an active row; plain decoding always is."""
    plain = jnp.arange(cost.shape[1])[None, :] == 0
    if signals.steering is None:
        return plain | True
    budget = jnp.min(jnp.where(signals.active, signals.steering.latency_budget, jnp.inf))
    return plain | (cost <= budget)


NEXT = 0.8
"""Chance of the next draft, before it is drawn, that the decision to draw it reckons with."""


def _worth(costs: CostTable, source: Int[Array, ""], rate: Float[Array, ""]) -> Float[Array, ""]:
    """How probable a model draft's chain must be for its next draft to be worth its time.

    One more draft costs c and gives at most chain x NEXT tokens; the time is worth rate x c tokens elsewhere.
    """
    steps = costs.draft.shape[1] - 1
    width = (costs.verify[-1] - costs.verify[0]) / jnp.maximum(steps, 1)
    draft = (costs.draft[source, -1] - costs.draft[source, 1]) / max(steps - 1, 1) if steps > 1 else 0.0
    return jnp.minimum(rate * (draft + width) / NEXT, 1.0)


__all__ = ["Goodput", "Kinds", "SelectorParams", "costs_of", "expected_tokens", "goodput", "kinds_of", "plan"]
