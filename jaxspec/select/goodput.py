"""Goodput: the source and lookahead that give the most expected tokens for the expected time, here and now.

    entries of the table                                    expected tokens                      expected time
    no paid source, longest lookahead K = 0 .. A            best free source of each row         window K
    the source whose branch rides, K = 0 .. A               likewise                             window K, the branch
    a source that costs a pass                              its chain, where it stops, its tail  its drafts, window, lag

    rate = sum over rows of expected tokens / expected time          the step takes the best entry

Lookahead 0 is one of the entries, so plain decoding wins where nothing pays. All rows of a step share its time: with
many rows a wide window is dear, and the lookahead falls by itself.
"""

import functools
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxspec.contracts import Choice, Feedback, Proposal, Selector, Signals
from jaxspec.sampling.confidence import ODDS, odds
from jaxspec.select import logistic
from jaxspec.select.by_chance import choose_by, continue_by, nothing_told
from jaxspec.select.cost import CostTable, guess
from jaxspec.select.features import BIAS, WIDTH, features, naive_weights
from jaxspec.select.kinds import Kinds
from jaxspec.select.logistic import Lean, Model
from jaxspec.select.plan import table_of
from jaxspec.typing import PyTree, RowFloats, Rows


class Prior(NamedTuple):
    """What is known before the first round, from training (`scripts/train_router.py`) or from earlier calls."""

    takes: Model  # [N, F] whether the target takes a draft; for paid sources: whether it is drawn, and taken
    draws: Model  # [N, F] whether a paid source goes on to draw a draft
    trust: Model  # [N, 2] what a paid source's confidence means
    tried: Float[Array, "N"]  # rounds in which a source was run


class SelectorParams(NamedTuple):
    """What a selector is given, all traced."""

    cost: CostTable
    prior: PyTree  # `Prior`, or the `Net` of a router
    clusters: Float[Array, "C D"] | None = None
    classes: Array | None = None  # int8 [V], class of each token


class Tails(NamedTuple):
    """What has followed the drafts of sources that are paid for; sums over rounds, older ones counting less."""

    taken: Float[Array, "N"]
    whole: Float[Array, "N"]  # rounds in which the source's own drafts were all taken, so that the tail counted
    given: Float[Array, "N"]
    rounds: Float[Array, "N"]


class Goodput(NamedTuple):
    """What evolves. The models hold what all rows have learnt beyond the prior; leans are a row's own."""

    takes: Model
    draws: Model
    trust: Model
    leans: tuple[Lean, Lean, Lean]
    tried: Float[Array, "N"]
    tails: Tails
    rounds: Float[Array, ""]
    told: dict[str, Array]  # of the last round, [B] or [B, N], for people to look at


def no_prior(kinds: Kinds, expects: Mapping[str, float] = MappingProxyType({})) -> Prior:
    """Nothing known but, by source, the share of first drafts that the target is expected to take."""
    free = tuple(not paid for paid in kinds.passes)
    weights = naive_weights(free)
    for name, share in expects.items():
        inside = min(max(share, 0.01), 0.99)
        weights[kinds.names.index(name), BIAS] = math.log(inside / (1 - inside))
    naive = jnp.asarray(weights)
    plain = jnp.broadcast_to(jnp.asarray([0.0, ODDS], jnp.float32), (len(free), 2))
    takes, trust = logistic.fresh(naive), logistic.fresh(plain)
    return Prior(takes, takes, trust, jnp.zeros(len(free), jnp.float32))


def learnt(prior: Prior, state: Goodput) -> Prior:
    """The prior of the next call: what was known and what the rounds of a state have added.

    What was seen long ago slows learning no more than CALLS observations do.
    """
    models = (_sum(*each) for each in zip(prior[:3], state[:3], strict=True))
    takes, draws, trust = (Model(model.weights, jnp.minimum(model.slopes, CALLS)) for model in models)
    return Prior(takes, draws, trust, prior.tried + state.tried)


CALLS = 50.0
"""Most that the squared slopes of a weight count for from call to call."""


@functools.lru_cache(maxsize=256)
def goodput(
    kinds: Kinds, *, optimism: float = 0.1, tails: bool = True, stops: bool = True, clusters: int = 0
) -> Selector:
    """Maximise expected tokens over expected time; see the module. Its parameters are `SelectorParams`, or () to guess.

    Args:
        optimism: how far the chances of a source that is paid for are raised while it was tried little, times
            sqrt(log(1 + rounds) / (1 + rounds it was tried)): it is tried again at a rate that decays. Static.
        tails: let a free source go on where a model draft stops. Static.
        stops: let a model draft stop by itself where its chain is not worth the next step. Static.
        clusters: kinds of text that `SelectorParams.clusters` tells apart (`scripts/build_clusters.py`); 0 for none.
            Static.
    """
    sources = len(kinds.names)

    def given(params: PyTree) -> SelectorParams:
        return params or SelectorParams(guess(kinds.passes, kinds.nodes, kinds.windows), no_prior(kinds))

    def init(rows: int, _: int) -> Goodput:
        def zeros(*shape: int) -> Array:  # each a buffer of its own: the state is donated
            return jnp.zeros((sources, *shape), jnp.float32)

        takes, draws, trust = (Model(zeros(width), zeros(width)) for width in (WIDTH, WIDTH, 2))
        leans = (logistic.no_lean(rows, sources), logistic.no_lean(rows, sources), logistic.no_lean(rows, sources))
        tails = Tails(zeros(), zeros(), zeros(), zeros())
        return Goodput(takes, draws, trust, leans, zeros(), tails, jnp.float32(0), nothing_told(rows, sources))

    def choose(params: PyTree, state: Goodput, signals: Signals) -> Choice:
        known = given(params)
        x = features(signals, kinds.lookahead, kinds.free)
        raised = _bonus(state, known.prior, kinds, optimism)
        chance = jnp.minimum(_predict(known.prior.takes, state.takes, state.leans[0], x) + raised[None, :, None], 1.0)
        goes = _predict(known.prior.draws, state.draws, state.leans[1], x)
        trust = functools.partial(_trust, known.prior, state)
        table = table_of(known.cost, signals, chance, goes, _tail_means(state.tails), kinds)
        return choose_by(known.cost, table, signals, kinds, trust, stops=stops)

    def tail(params: PyTree, state: Goodput, signals: Signals, choice: Choice, head: Proposal) -> Choice:
        known = given(params)
        x = features(signals._replace(seen=None), kinds.lookahead, kinds.free)
        chance = _predict(known.prior.takes, state.takes, state.leans[0], x)
        trust = functools.partial(_trust, known.prior, state)
        return continue_by(known.cost, signals, chance, choice, head, kinds, trust)

    def carry(params: PyTree, state: Goodput) -> Prior:
        return learnt(given(params).prior, state)

    def update(
        params: PyTree, state: Goodput, signals: Signals, choice: Choice, _: Any, __: Any, feedback: Feedback
    ) -> Goodput:
        return _learn(given(params).prior, state, signals, choice, feedback, kinds)

    own = {"feedback": True, "certainty": True, "tail": tail if tails else None, "clusters": clusters}
    return Selector("goodput", init, choose, update, carry=carry, **own)


def _sum(prior: Model, learnt: Model) -> Model:
    return Model(prior.weights + learnt.weights, prior.slopes + learnt.slopes)


def _predict(prior: Model, learnt: Model, lean: Lean, x: Array) -> Float[Array, "B N A"]:
    return logistic.predict(_sum(prior, learnt), lean, x)


def _bonus(state: Goodput, prior: Prior, kinds: Kinds, optimism: float) -> Float[Array, "N"]:
    """What is added to the chances of sources that teach nothing unless they are run."""
    costly = jnp.asarray(kinds.passes) | ((jnp.arange(len(kinds.names)) == kinds.carrier) & (kinds.carrier > 0))
    tried = prior.tried + state.tried
    rounds = jnp.maximum(state.rounds, jnp.sum(tried))
    return jnp.where(costly, optimism * jnp.sqrt(jnp.log1p(rounds) / (1 + tried)), 0.0)


def _tail_means(tails: Tails) -> tuple[Float[Array, "N"], Float[Array, "N"]]:
    """Tokens that a tail brings where it counts, and drafts in it; five rounds without any to begin."""
    return tails.taken / (tails.whole + 5), tails.given / (tails.rounds + 5)


def _trust(prior: Prior, state: Goodput, source: Rows) -> tuple[RowFloats, RowFloats]:
    weights = _sum(prior.trust, state.trust).weights[source]
    lean = jnp.take_along_axis(state.leans[2].bias, source[:, None], axis=1)[:, 0]
    return weights[:, 0] + lean, weights[:, 1]


def _learn(prior: Prior, state: Goodput, signals: Signals, choice: Choice, feedback: Feedback, kinds: Kinds) -> Goodput:
    x = features(signals, kinds.lookahead, kinds.free)
    depth = jnp.arange(kinds.lookahead)[None, None, :]
    drawn = feedback.drawn[..., None]
    costly = jnp.asarray(kinds.passes)[None, :, None]
    ran = costly & (jnp.arange(len(kinds.names))[None, :, None] == choice.source[:, None, None]) & (drawn > 0)
    could = depth < signals.offered[..., None]
    # where a draft that was not drawn would have stood, nothing was won
    ended = ran & could & (depth == drawn) & (feedback.emitted[:, None, None] > drawn)
    vain = _in_vain(signals, choice, kinds)
    takes, lean = logistic.learn(
        _sum(prior.takes, state.takes),
        state.leans[0],
        x,
        feedback.chance,
        feedback.known | ended | (vain[..., None] & (depth == 0)),
    )
    draws, going = logistic.learn(
        _sum(prior.draws, state.draws), state.leans[1], x, (depth < drawn).astype(jnp.float32),
        ran & could & (depth > 0) & (depth <= drawn),
    )  # fmt: skip
    sure = jnp.stack([jnp.ones_like(feedback.confidence), odds(feedback.confidence)], -1)
    trust, leaning = logistic.learn(
        _sum(prior.trust, state.trust), state.leans[2], sure, feedback.chance, feedback.known & ran
    )
    mine = (jnp.arange(len(kinds.names))[None, :] == choice.source[:, None]) & signals.active[:, None]
    return Goodput(
        takes=_beyond(takes, prior.takes),
        draws=_beyond(draws, prior.draws),
        trust=_beyond(trust, prior.trust),
        leans=(lean, going, leaning),
        tried=state.tried + jnp.sum((mine | vain).astype(jnp.float32), axis=0),
        tails=_tails(state, choice, feedback, mine),
        rounds=state.rounds + jnp.sum(signals.active.astype(jnp.float32)),
        told=state.told if choice.told is None else choice.told,
    )


def _in_vain(signals: Signals, choice: Choice, kinds: Kinds) -> Bool[Array, "B N"]:
    """Rows that have asked the source whose branch rides for drafts that it did not have: it rode, and won nothing."""
    nothing = (signals.offered[:, kinds.carrier] == 0) & (choice.source == 0) & signals.active
    if not kinds.carrier or choice.told is None or signals.room is None:
        return jnp.zeros(signals.offered.shape, bool)
    nothing &= (choice.told["lookahead"] > 0) & (signals.room > 0)  # nothing else is asked that offers nothing
    if signals.steering is not None:
        nothing &= (signals.steering.pinned < 0) & (signals.steering.weights[:, kinds.carrier] > 0)
    return nothing[:, None] & (jnp.arange(len(kinds.names)) == kinds.carrier)[None, :]


def _beyond(model: Model, prior: Model) -> Model:
    return Model(model.weights - prior.weights, model.slopes - prior.slopes)


def _tails(state: Goodput, choice: Choice, feedback: Feedback, mine: Array) -> Tails:
    """The tails of a round beside those before it, by the source of the head."""
    if choice.tail_lookahead is None:
        return state.tails
    head = jnp.sum(jnp.where(mine, feedback.drawn, 0), axis=1)
    taken = jnp.clip(feedback.emitted - 1 - head, 0, choice.tail_lookahead)
    whole = (feedback.emitted > head) & (choice.tail_lookahead > 0)
    each = Tails(taken, whole, choice.tail_lookahead, jnp.ones_like(taken))
    ran = mine.astype(jnp.float32)
    kept = 0.99 ** jnp.sum(ran, axis=0)
    return jax.tree.map(lambda old, new: old * kept + new.astype(jnp.float32) @ ran, state.tails, each)


__all__ = ["Goodput", "Prior", "SelectorParams", "Tails", "goodput", "learnt", "no_prior"]
