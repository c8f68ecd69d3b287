"""A selector's own choices played on records: what it would have emitted, and at what cost, without a model.

    at ──► Signals(record at) ──► choose ──► settle ──► accepted = min(right, lookahead) ──► at + accepted + 1
                                                        cost = verify[drafts] + draft[source, drafts] + lag + ride
                                              update ◄── Feedback, censored as in `jaxspec.select.feedback`

What a record cannot tell is left out: a source whose branch rides in the window offers what it would offer if that had
ridden in every round, and drafts are judged by the text's tokens, not by the target's probabilities.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxspec.bench.prices import Priced, Prices, priced
from jaxspec.bench.record import Pool, Record, Tape, pool_of, stack
from jaxspec.contracts import FREE, Choice, Feedback, Proposal, Seen, Selector, Signals, Steering, Verdict
from jaxspec.drafts.bank import settle
from jaxspec.sampling.confidence import goes_on, trusted
from jaxspec.typing import PyTree


class Series(NamedTuple):
    """Rounds in order; [R, n] of R texts, zeros after each text's last round, or [n] of one."""

    position: Any  # int32, tokens of the text before the round
    source: Any  # int32
    lookahead: Any  # int32, drafts that were verified
    accepted: Any  # int32
    emitted: Any  # int32
    cost: Any  # float32


@dataclasses.dataclass(frozen=True)
class Replayed:
    """What came of it, text by text."""

    pool: Pool
    categories: tuple[str, ...]  # [R]
    rounds: np.ndarray  # [R]
    series: Series  # [R, n], numpy
    state: PyTree = ()  # the selector's, after the last text

    @property
    def tokens(self) -> np.ndarray:
        """[R], of each text."""
        return self.series.emitted.sum(1)

    @property
    def cost(self) -> np.ndarray:
        """[R] float64, of each text."""
        return self.series.cost.astype(np.float64).sum(1)

    @property
    def rate(self) -> float:
        """Tokens a unit of cost, of all texts together."""
        return float(self.tokens.sum() / self.cost.sum())

    def by_category(self) -> dict[str, float]:
        """`rate` of each category's texts."""
        names = np.asarray(self.categories)
        return {
            name: float(self.tokens[names == name].sum() / self.cost[names == name].sum())
            for name in sorted(set(self.categories))
        }

    def by_source(self) -> dict[str, int]:
        """Rounds of each source."""
        ran = self.series.source[self.series.emitted > 0]
        return {name: int(np.sum(ran == index)) for index, name in enumerate(self.pool.names)}

    def text(self, row: int) -> Series:
        """The rounds of one text, without padding."""
        return Series(*(leaf[row, : self.rounds[row]] for leaf in self.series))


def replay(
    selector: Selector,
    params: PyTree,
    records: Sequence[Record],
    costs: Priced,
    *,
    windows: Sequence[int] | None = None,
    fresh: bool = False,
    state: PyTree = None,
) -> Replayed:
    """Play a selector on texts, one after the other.

    Args:
        params: the selector's own, as in `EngineParams.selector`.
        costs: what the rounds are charged, whatever the selector believes.
        windows: the widths that `costs.verify` has entries for; 1, 2, 3, .. where None.
        fresh: begin every text with a state of its own; otherwise it is carried on, as in an engine that stays up.
        state: the selector's to begin with; a fresh one where None. Not with `fresh`.

    Raises:
        ValueError: records of different setups, or costs that do not cover their drafts.
    """
    pool = pool_of(records)
    prices = priced(costs, records, windows)
    tape = stack(records)
    state = selector.init(1, len(pool.names)) if state is None else state
    state, rounds, series = _play(selector, pool, fresh, params, state, tape, prices)
    rounds, series = jax.device_get((rounds, series))
    return Replayed(pool, tuple(record.category for record in records), rounds, series, state)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _play(
    selector: Selector, pool: Pool, fresh: bool, params: PyTree, state: PyTree, tapes: Tape, prices: Prices
) -> tuple[PyTree, Array, Series]:
    first = state

    def one(state: PyTree, tape: Tape) -> tuple[PyTree, tuple[Array, Series]]:
        state, rounds, series = play(selector, pool, params, first if fresh else state, tape, prices)
        return state, (rounds, series)

    state, (rounds, series) = jax.lax.scan(one, state, jax.tree.map(jnp.asarray, tapes))
    return state, rounds, series


class _Place(NamedTuple):
    """The record where a round begins; every array of one row."""

    offered: Array  # [1, N], capped by what is left
    run: Array  # [1, N]
    match: Array  # [1, N]
    confidence: Array  # [1, N, A]
    seen: Seen
    ids: Array  # [1, A + 1], the text from here on


def play(
    selector: Selector, pool: Pool, params: PyTree, state: PyTree, tape: Tape, prices: Prices
) -> tuple[PyTree, Array, Series]:
    """The rounds of one text: the selector's state, the number of rounds, and the rounds [n]."""
    positions = tape.ids.shape[0]
    zeros = jnp.zeros(positions, jnp.int32)
    empty = Series(zeros, zeros, zeros, zeros, zeros, jnp.zeros(positions, jnp.float32))
    lags = jnp.asarray(pool.lags)[None, :]

    def body(carry: tuple) -> tuple:
        at, turn, missed, state, series = carry
        place = _look(tape, at)
        room = jnp.clip(tape.limit - at - 1, 0, tape.confidence.shape[-1])[None]
        signals = _signals(pool, tape, place, at, jnp.where(lags, missed, 0))._replace(room=room)
        asked = selector.choose(params, state, signals)
        choice = _stopped(pool, place, settle(asked, signals))
        choice, more = _continued(selector, pool, params, state, tape, place, at, choice)
        accepted = jnp.minimum(_taken(place.run, choice.source), choice.lookahead)
        accepted += jnp.where(accepted == choice.lookahead, more, 0)
        emitted = jnp.minimum(accepted + 1, tape.length - at)
        cost = _charge(pool, prices, signals, asked, choice)
        feedback = _feedback(pool, place, signals, choice, emitted)
        verdict = Verdict(jnp.minimum(accepted, emitted), place.ids, emitted, None)
        state = selector.update(params, state, signals, choice, _proposal(place, choice), verdict, feedback)
        row = Series(at, choice.source[0], choice.lookahead[0], verdict.accepted[0], emitted[0], cost[0])
        series = jax.tree.map(lambda into, value: into.at[turn].set(value), series, row)
        ran = (jnp.arange(len(pool.names))[None, :] == choice.source[:, None]) & (choice.lookahead > 0)[:, None]
        spare = (emitted > choice.lookahead).astype(jnp.int32)  # the last draft of a round is not run
        missed = jnp.where(ran, spare[:, None], missed + emitted[:, None])
        return at + emitted[0], turn + 1, missed, state, series

    missed = jnp.broadcast_to(tape.prompt_length - 1, (1, len(pool.names))).astype(jnp.int32)
    start = (jnp.int32(0), jnp.int32(0), missed, state, empty)
    _, turn, _, state, series = jax.lax.while_loop(lambda carry: carry[0] < tape.length, body, start)
    return state, turn, series


def _look(tape: Tape, at: Array) -> _Place:
    left = jnp.clip(tape.limit - at - 1, 0, tape.confidence.shape[-1])
    seen = Seen(tape.top[at][None], tape.margin[at][None], tape.entropy[at][None], tape.domain[at][None])
    following = at + jnp.arange(tape.confidence.shape[-1] + 1)
    ids = jnp.where(following < tape.length, tape.ids[jnp.minimum(following, tape.ids.shape[0] - 1)], 0)
    return _Place(
        offered=jnp.minimum(tape.offered[at], left)[None],
        run=tape.right[at][None],
        match=tape.match[at][None],
        confidence=tape.confidence[at][None],
        seen=seen,
        ids=ids[None],
    )


def _signals(pool: Pool, tape: Tape, place: _Place, at: Array, lag: Array) -> Signals:
    known = _free(pool) & (place.offered > 0)  # what a model is sure of is not known before it has run
    return Signals(
        offered=place.offered,
        match=place.match,
        lag=lag,
        active=jnp.ones(1, bool),
        confidence=jnp.where(known, place.confidence[:, :, 0], 1.0),
        length=(tape.prompt_length + at)[None],
        seen=place.seen,
        steering=neutral(place.offered.shape[1]),
    )


def neutral(sources: int) -> Steering:
    """Steering of one row whose caller says nothing."""
    return Steering(
        pinned=jnp.full(1, -1, jnp.int32),
        weights=jnp.ones((1, sources), jnp.float32),
        domain=jnp.full(1, -1, jnp.int32),
        load=jnp.zeros(1, jnp.float32),
        latency_budget=jnp.full(1, jnp.inf, jnp.float32),
        least_width=jnp.ones(1, jnp.int32),
    )


def _stopped(pool: Pool, place: _Place, choice: Choice) -> Choice:
    """The choice with the drafts that a model source draws before one more is not worth its time."""
    if choice.stop is None:
        return choice
    own = jnp.take_along_axis(place.confidence, choice.source[:, None, None], axis=1)[:, 0]
    chain = jnp.cumprod(trusted(own, choice.stop.intercept, choice.stop.slope), axis=1)
    drafts = jnp.arange(1, own.shape[1] + 1, dtype=jnp.float32)[None, :]
    base, step = choice.stop.base[:, None], choice.stop.step[:, None]
    on = goes_on(chain, 1 + jnp.cumsum(chain, axis=1), drafts, base, step)
    drawn = 1 + jnp.sum(jnp.cumprod(on.astype(jnp.int32), axis=1), axis=1)
    free = jnp.take_along_axis(_free(pool), choice.source[:, None], axis=1)[:, 0]
    return choice._replace(lookahead=jnp.where(free, choice.lookahead, jnp.minimum(choice.lookahead, drawn)))


def _continued(
    selector: Selector, pool: Pool, params: PyTree, state: PyTree, tape: Tape, place: _Place, at: Array, choice: Choice
) -> tuple[Choice, Array]:
    """The choice with the tail that the selector wants, and how many of its drafts are right if the head is.

    What a free source would say after drafts that the text does not follow is not known; it is taken to say what it
    says at that place of the text, so that the selector cannot tell from its signals whether the head is right.
    """
    zeros = jnp.zeros_like(choice.source)
    choice = choice._replace(tail=zeros, tail_lookahead=zeros)
    if selector.tail is None:
        return choice, zeros
    end = at + choice.lookahead[0]
    known = (_taken(place.run, choice.source) >= choice.lookahead) & (end < tape.length)
    there = _look(tape, jnp.minimum(end, tape.length - 1))
    tails = _free(pool) & (jnp.arange(len(pool.names)) != (pool.carrier or 0))[None, :]
    left = jnp.clip(tape.limit - end - 1, 0, tape.confidence.shape[-1] - choice.lookahead)[:, None]
    ahead = there._replace(offered=jnp.where(tails, jnp.minimum(there.offered, left), 0))
    signals = _signals(pool, tape, ahead, end, jnp.zeros_like(ahead.offered))
    picked = selector.tail(params, state, signals, choice, _proposal(place, choice))
    costly = ~jnp.take_along_axis(_free(pool), choice.source[:, None], axis=1)[:, 0]
    most = jnp.where(costly & (choice.lookahead > 0), _taken(ahead.offered, picked.tail), 0)
    length = jnp.clip(picked.tail_lookahead, 0, most)
    right = jnp.where(known, _taken(there.run, picked.tail), 0)
    return choice._replace(tail=jnp.where(length > 0, picked.tail, 0), tail_lookahead=length), jnp.minimum(
        right, length
    )


def _charge(pool: Pool, prices: Prices, signals: Signals, asked: Choice, choice: Choice) -> Array:
    """Cost of the round [1]. The branch rides where its source is asked, offered or not (`jaxspec.drafts.bank`)."""
    tail = 0 if choice.tail_lookahead is None else choice.tail_lookahead
    cost = prices.verify[choice.lookahead + tail] + prices.draft[choice.source, choice.lookahead]
    cost = cost + prices.lag[choice.source] * _taken(signals.lag, choice.source).astype(jnp.float32)
    if pool.carrier is None:
        return cost
    return cost + jnp.where((asked.source == pool.carrier) & (asked.lookahead > 0), prices.ride, 0.0)


def _feedback(pool: Pool, place: _Place, signals: Signals, choice: Choice, emitted: Array) -> Feedback:
    """As `jaxspec.select.feedback.full_information` scores what was at hand: free sources, and the one that ran."""
    mine = jnp.arange(len(pool.names))[None, :] == choice.source[:, None]
    count = jnp.where(_free(pool), signals.offered, jnp.where(mine, choice.lookahead[:, None], 0))[..., None]
    depth = jnp.arange(place.confidence.shape[-1])[None, None, :]
    known = (depth < count) & (depth <= place.run[..., None]) & (depth < emitted[:, None, None])
    right = known & (depth < place.run[..., None])
    confidence = jnp.where(depth < count, place.confidence, 1.0)
    return Feedback(known, right, right.astype(jnp.float32), confidence, count[..., 0], emitted)


def _proposal(place: _Place, choice: Choice) -> Proposal:
    """The chosen source's drafts, but for their tokens, which records do not keep: zeros."""
    depth = jnp.arange(place.confidence.shape[-1])[None, :]
    own = jnp.take_along_axis(place.confidence, choice.source[:, None, None], axis=1)[:, 0]
    return Proposal(
        tokens=jnp.zeros(own.shape, jnp.int32),
        count=choice.lookahead,
        q_log=None,
        sampled=jnp.zeros(1, bool),
        match=_taken(place.match, choice.source),
        confidence=jnp.where(depth < choice.lookahead[:, None], own, 1.0),
    )


def _free(pool: Pool) -> Array:
    """[1, N], sources that propose in every round."""
    return jnp.asarray([cost == FREE for cost in pool.costs])[None, :]


def _taken(each: Array, source: Array) -> Array:
    """[1, N] at each row's source."""
    return jnp.take_along_axis(each, source[:, None], axis=1)[:, 0]


__all__ = ["Replayed", "Series", "neutral", "play", "replay"]
