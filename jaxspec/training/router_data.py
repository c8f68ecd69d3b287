"""Records of texts as examples for a router: at every place, what was known and how far each source's drafts went.

    known   the text tells whether the draft at this depth is taken: those before it are, and the text goes on so far
    drawn   a source that costs a pass is asked for drafts until one more is not worth it, by what it was trained for

Every place of every text tells something of every source, as full information does.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxspec.contracts import Seen, Signals
from jaxspec.sampling.confidence import ODDS, goes_on, odds, trusted
from jaxspec.select.cost import CostTable
from jaxspec.select.kinds import Kinds, kinds_from
from jaxspec.select.plan import stop_of

RIDGE = 1.0
"""Observations that the plain trust in a confidence counts for."""


@runtime_checkable
class Sources(Protocol):
    """As `jaxspec.bench.record.Pool`."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def costs(self) -> tuple[str, ...]: ...
    @property
    def carrier(self) -> int | None: ...
    @property
    def nodes(self) -> int: ...


@runtime_checkable
class Text(Protocol):
    """As `jaxspec.bench.record.Record`."""

    @property
    def pool(self) -> Any: ...
    @property
    def offered(self) -> np.ndarray: ...
    @property
    def right(self) -> np.ndarray: ...
    @property
    def match(self) -> np.ndarray: ...
    @property
    def confidence(self) -> np.ndarray: ...
    @property
    def top(self) -> np.ndarray: ...
    @property
    def margin(self) -> np.ndarray: ...
    @property
    def entropy(self) -> np.ndarray: ...
    @property
    def domain(self) -> np.ndarray: ...
    @property
    def limit(self) -> int: ...


class Examples(NamedTuple):
    """Places of several texts behind one another, numpy; P places."""

    text: np.ndarray  # [P] number of the text
    left: np.ndarray  # [P] tokens of the text from here on
    offered: np.ndarray  # [P, N] capped by what the text may still have
    right: np.ndarray  # [P, N]
    match: np.ndarray  # [P, N]
    confidence: np.ndarray  # [P, N, A]
    top: np.ndarray  # [P]
    margin: np.ndarray
    entropy: np.ndarray
    domain: np.ndarray

    def some(self, which: np.ndarray) -> "Examples":
        """Those places, by index or mask."""
        return Examples(*(leaf[which] for leaf in self))


class Targets(NamedTuple):
    """What a place teaches, as `goodput` learns it: whether a draft is taken, and whether a paid source draws it."""

    taken: Any  # [P, N, A] float32
    takes_known: Any  # [P, N, A] bool
    went: Any  # [P, N, A] float32
    draws_known: Any  # [P, N, A] bool


def kinds_of_pool(pool: Sources, depth: int) -> Kinds:
    """What selectors know of a pool's sources, every window width being compiled."""
    return kinds_from(pool.names, pool.costs, pool.carrier, pool.nodes, tuple(range(1, depth + 2)))


def examples_of(texts: Sequence[Text]) -> Examples:
    """Every place of every text."""
    parts = []
    for number, text in enumerate(texts):
        count = len(text.top)
        at = np.arange(count)
        offered = np.minimum(text.offered, np.maximum(text.limit - at - 1, 0)[:, None])
        fields = (text.match, text.confidence, text.top, text.margin, text.entropy, text.domain)
        parts.append((np.full(count, number), count - at, offered, np.minimum(text.right, offered), *fields))
    return Examples(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def signals_of(examples: Examples, free: tuple[bool, ...]) -> Signals:
    """What a selector would see at the places, each a row."""
    top, margin, entropy = (jnp.asarray(e, jnp.float32) for e in (examples.top, examples.margin, examples.entropy))
    known = np.asarray(free)[None, :] & (examples.offered > 0)
    return Signals(
        offered=jnp.asarray(examples.offered, jnp.int32),
        match=jnp.asarray(examples.match, jnp.int32),
        lag=jnp.zeros(examples.offered.shape, jnp.int32),
        active=jnp.ones(len(examples.left), bool),
        confidence=jnp.asarray(np.where(known, examples.confidence[:, :, 0], 1.0), jnp.float32),
        seen=Seen(top, margin, entropy, jnp.asarray(examples.domain, jnp.int32)),
    )


def judged(examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """Whether each draft would be taken, and whether the text tells: [P, N, A] bool each.

    4 offered, 2 right   ->   taken 1 1 0 0   known 1 1 1 0
    """
    depth = np.arange(examples.confidence.shape[2])[None, None, :]
    told = (depth < examples.offered[..., None]) & (depth < examples.left[:, None, None])
    return depth < examples.right[..., None], told & (depth <= examples.right[..., None])


def trust_of(examples: Examples, kinds: Kinds, *, steps: int = 20) -> Float[np.ndarray, "N 2"]:
    """What each paid source's confidence has meant: intercept and slope of log-odds, by Newton's method.

    Little data leaves the plain trust, which believes a confidence as it is.
    """
    taken, known = judged(examples)
    plain = np.asarray([0.0, ODDS])
    sure = np.asarray(odds(jnp.asarray(examples.confidence, jnp.float32)), np.float64)
    found = np.broadcast_to(plain, (len(kinds.names), 2)).copy()
    for source in kinds.models:
        x = np.stack([np.ones_like(sure[:, source]), sure[:, source]], -1)[known[:, source]]
        y = taken[:, source][known[:, source]]
        weights = plain.copy()
        for _ in range(steps if len(y) else 0):
            chance = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
            slope = x.T @ (chance - y) + RIDGE * (weights - plain)
            bend = (x * (chance * (1 - chance))[:, None]).T @ x + RIDGE * np.eye(2)
            weights = weights - np.linalg.solve(bend, slope)
        found[source] = weights
    return found.astype(np.float32)


def drawn_of(examples: Examples, kinds: Kinds, costs: CostTable, trust: np.ndarray) -> np.ndarray:
    """Drafts that each source would draw, [P, N]: a free one what it offers, a paid one until it stops by itself."""
    drawn = examples.offered.copy()
    for source in kinds.models:
        rows = len(drawn)
        lean = (jnp.full(rows, float(each), jnp.float32) for each in trust[source])
        stop = stop_of(costs, jnp.int32(source), *lean)
        own = jnp.asarray(examples.confidence[:, source], jnp.float32)
        chain = jnp.cumprod(trusted(own, stop.intercept, stop.slope), axis=1)
        count = jnp.arange(1, own.shape[1] + 1, dtype=jnp.float32)[None, :]
        on = goes_on(chain, 1 + jnp.cumsum(chain, axis=1), count, stop.base[:, None], stop.step[:, None])
        length = 1 + np.asarray(jnp.sum(jnp.cumprod(on.astype(jnp.int32), axis=1), axis=1))
        drawn[:, source] = np.minimum(drawn[:, source], length)
    return drawn


def targets_of(examples: Examples, kinds: Kinds, drawn: np.ndarray) -> Targets:
    """What the places teach; a draft that was not drawn where all before it were right counts as not taken."""
    taken, known = judged(examples)
    depth = np.arange(taken.shape[2])[None, None, :]
    there = depth < drawn[..., None]
    passes = np.asarray(kinds.passes)[None, :, None] & (drawn > 0)[..., None]
    could = depth < examples.offered[..., None]
    return Targets(
        taken=(taken & there).astype(np.float32),
        takes_known=known & (there | (passes & (depth == drawn[..., None]))),
        went=there.astype(np.float32),
        draws_known=passes & could & (depth > 0) & (depth <= drawn[..., None]),
    )


def log_loss(log_odds: Float[Array, "*X"], said: Float[Array, "*X"]) -> Float[Array, "*X"]:
    """Nats."""
    return jax.nn.softplus(log_odds) - said * log_odds


__all__ = [
    "Examples",
    "Targets",
    "Text",
    "drawn_of",
    "examples_of",
    "judged",
    "kinds_of_pool",
    "log_loss",
    "signals_of",
    "targets_of",
    "trust_of",
]
