"""A selector and a source driven by data: one compiled engine runs every schedule of sources, lookaheads and drafts."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.contracts import FREE, Choice, DraftSource, Proposal, Selector

ROUNDS = 128
"""Rounds of a plan and of a log; later ones start over."""


class Plan(NamedTuple):
    """What every row asks for in every round; `EngineParams.selector`, so traced."""

    source: jax.Array  # [B, R]
    lookahead: jax.Array  # [B, R]
    stride: jax.Array  # [B]; above 0 the entry depends on how much was accepted so far


class Log(NamedTuple):
    """Every round as the selector saw it; the selector's state."""

    round: jax.Array  # []
    total: jax.Array  # [B] drafts accepted so far
    source: jax.Array  # [R, B] as settled
    lookahead: jax.Array  # [R, B]
    offered: jax.Array  # [R, B, N]
    match: jax.Array  # [R, B, N]
    lag: jax.Array  # [R, B, N]
    tokens: jax.Array  # [R, B, A]
    count: jax.Array  # [R, B]
    confidence: jax.Array  # [R, B, A]
    q_log: jax.Array  # [R, B, A, V]; V is 0 where no laws are kept
    accepted: jax.Array  # [R, B]
    emitted: jax.Array  # [R, B]


@functools.lru_cache(maxsize=64)
def scheduled(lookahead: int, laws: int = 0, version: int = 0, rounds: int = ROUNDS) -> Selector:
    """Choose what the plan says and log the last `rounds`. `laws` is the vocabulary of the drafts' laws, 0 without.

    `version` only makes another selector, and so another compiled program.
    """

    def init(rows: int, sources: int) -> Log:
        def zeros(*shape: int, dtype=jnp.int32) -> jax.Array:
            return jnp.zeros((rounds, rows, *shape), dtype)

        def by_source() -> jax.Array:
            return zeros(sources)

        return Log(
            round=jnp.int32(0),
            total=jnp.zeros(rows, jnp.int32),
            source=zeros(),
            lookahead=zeros(),
            offered=by_source(),
            match=by_source(),
            lag=by_source(),
            tokens=zeros(lookahead),
            count=zeros(),
            confidence=zeros(lookahead, dtype=jnp.float32),
            q_log=zeros(lookahead, laws, dtype=jnp.float32),
            accepted=zeros(),
            emitted=zeros(),
        )

    def choose(plan: Plan, log: Log, signals) -> Choice:
        at = jnp.mod(log.round + plan.stride * log.total, plan.source.shape[1])[:, None]
        return Choice(*(jnp.take_along_axis(entries, at, axis=1)[:, 0] for entries in (plan.source, plan.lookahead)))

    def update(plan: Plan, log: Log, signals, choice: Choice, proposal: Proposal, verdict, feedback) -> Log:
        q_log = jnp.zeros(log.q_log.shape[1:]) if proposal.q_log is None else proposal.q_log[..., :laws]
        seen = {
            "source": choice.source,
            "lookahead": choice.lookahead,
            "offered": signals.offered,
            "match": signals.match,
            "lag": signals.lag,
            "tokens": proposal.tokens,
            "count": proposal.count,
            "confidence": proposal.confidence,
            "q_log": q_log,
            "accepted": verdict.accepted,
            "emitted": verdict.count,
        }
        at = jnp.mod(log.round, rounds)
        entries = {name: getattr(log, name).at[at].set(value) for name, value in seen.items()}
        return log._replace(round=log.round + 1, total=log.total + verdict.accepted, **entries)

    return Selector(f"scheduled-{version}", init, choose, update)


def always(rows: int, source: int, lookahead: int) -> Plan:
    """The same in every row and round."""
    return plan_of(np.full((rows, ROUNDS), source), np.full((rows, ROUNDS), lookahead))


def shuffled(rows: int, sources: list[int], lookahead: int, seed: int, *, stride: int = 0) -> Plan:
    """Another source and lookahead, 0 to the largest, in every row and round."""
    rng = np.random.default_rng(seed)
    return plan_of(rng.choice(sources, (rows, ROUNDS)), rng.integers(0, lookahead + 1, (rows, ROUNDS)), stride)


def plan_of(source, lookahead, stride: int = 0) -> Plan:
    source, lookahead = (jnp.asarray(np.asarray(entries), jnp.int32) for entries in (source, lookahead))
    return Plan(source, lookahead, jnp.full(len(source), stride, jnp.int32))


@functools.lru_cache(maxsize=64)
def script(lookahead: int) -> DraftSource:
    """Draft what `EngineParams.drafts["script"]` [B, S] holds at the drafts' own positions; -1 ends a proposal."""

    def propose(params, view, state, wanted):
        at = view.length[:, None] + jnp.arange(lookahead, dtype=jnp.int32)[None, :]
        drafts = jnp.take_along_axis(params.drafts["script"], jnp.minimum(at, view.tokens.shape[1] - 1), axis=1)
        given = jnp.sum(jnp.cumprod((drafts >= 0).astype(jnp.int32), axis=1), axis=1, dtype=jnp.int32)
        return point_masses(jnp.maximum(drafts, 0), jnp.minimum(given, wanted)), ()

    return free_source("script", propose)


def point_masses(tokens: jax.Array, count: jax.Array) -> Proposal:
    rows = tokens.shape[0]
    return Proposal(tokens, count, None, jnp.zeros(rows, bool), jnp.zeros(rows, jnp.int32), jnp.ones(tokens.shape))


def free_source(name: str, propose, *, samples: bool = False) -> DraftSource:
    """A source without state that costs no model pass."""
    return DraftSource(
        name=name,
        cost=FREE,
        init=lambda rows, capacity, dtype: (),
        propose=propose,
        observe=lambda state, scratch, view, ran, verdict: state,
        samples=samples,
    )
