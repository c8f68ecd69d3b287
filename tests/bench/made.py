"""Small made-up records: of random drafts with their tokens, and a selector that keeps all it is told."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxspec.bench.prices import Prices
from jaxspec.bench.record import Pool, Record, run_length
from jaxspec.contracts import FREE, MODEL, Choice, Selector

POOL = Pool(
    ("none", "lookup", "jacobi", "lm"), (FREE, FREE, FREE, MODEL), (False, False, False, True), carrier=2, nodes=6
)
DEPTH = 5


class Made(NamedTuple):
    """A record and the drafts behind it."""

    record: Record
    drafts: np.ndarray  # [n, N, A]


def made(seed: int, tokens: int = 40, *, limit: int | None = None, category: str = "chat", good: float = 0.75) -> Made:
    """Drafts that are the text's next token by a chance at each place; some places offer fewer, or none."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 100, tokens).astype(np.int32)
    shape = (tokens, len(POOL.names), DEPTH)
    true = np.asarray([[ids[min(at + d, tokens - 1)] for d in range(DEPTH)] for at in range(tokens)])
    drafts = np.where(rng.random(shape) < good, true[:, None], 100 + rng.integers(0, 100, shape)).astype(np.int32)
    offered = rng.integers(0, DEPTH + 1, shape[:2]).astype(np.int32)
    offered[:, 0], offered[:, 3] = 0, DEPTH
    right = np.asarray(
        [[run_length(drafts[at, n], int(offered[at, n]), ids[at:]) for n in range(shape[1])] for at in range(tokens)]
    )
    seen = (rng.random((3, tokens)) * (np.arange(tokens) > 0)).astype(np.float32)
    record = Record(
        pool=POOL,
        offered=offered,
        right=right.astype(np.int32),
        match=np.where(offered > 0, rng.integers(1, 7, offered.shape), 0).astype(np.int32),
        confidence=rng.random(shape).astype(np.float32),
        top=seen[0],
        margin=seen[1],
        entropy=seen[2],
        domain=np.full(tokens, -1, np.int32),
        ids=ids,
        prompt_length=7,
        limit=tokens if limit is None else limit,
        category=category,
        name=f"made-{seed}",
    )
    return Made(record, drafts)


def some_prices(seed: int = 0) -> Prices:
    """Costs with everything in them, rising with the drafts."""
    rng = np.random.default_rng(seed)
    steps = np.arange(DEPTH + 1)
    return Prices(
        verify=(1 + 0.07 * steps).astype(np.float32),
        draft=(np.asarray([0, 0.01, 0.02, 0.2])[:, None] * steps * (1 + rng.random())).astype(np.float32),
        lag=np.asarray([0, 0, 0, 0.03], np.float32),
        ride=np.float32(0.11),
    )


class Kept(NamedTuple):
    """What a recording selector was told, round by round."""

    turn: jnp.ndarray
    hashed: jnp.ndarray  # float32, of all that choose and update were given
    known: jnp.ndarray  # [ROUNDS, N, A]
    chance: jnp.ndarray
    signals: tuple


ROUNDS = 64


def recording(*choices: tuple[int, int]) -> Selector:
    """Takes the choices in turn, and keeps what it sees; its feedback is the real thing's."""
    sources, lookaheads = (jnp.asarray(column, jnp.int32) for column in zip(*choices, strict=True))

    def init(rows: int, count: int) -> Kept:
        table = jnp.zeros((ROUNDS, count, DEPTH))
        each = jnp.zeros((ROUNDS, count), jnp.int32)
        return Kept(jnp.int32(0), jnp.float32(0), table, table, (each, each, each, jnp.zeros(ROUNDS, jnp.int32)))

    def choose(params, state, signals):
        at = state.turn % len(sources)
        return Choice(sources[at][None], lookaheads[at][None])

    def update(params, state, signals, choice, proposal, verdict, feedback):
        told = (
            *signals[:3],
            *signals[4:6],
            *signals.seen,
            *choice[:2],
            *proposal[:2],
            *proposal[4:],
            *verdict[:3],
            *feedback,
        )
        weight = (state.turn + 1).astype(jnp.float32)
        total = state.hashed + sum(
            jnp.sum(jnp.sin(weight * leaf.astype(jnp.float32).ravel() + i)) for i, leaf in enumerate(told)
        )
        kept = (signals.offered[0], signals.match[0], signals.lag[0], signals.length[0])
        return Kept(
            state.turn + 1,
            total.astype(jnp.float32),
            state.known.at[state.turn].set(feedback.known[0].astype(jnp.float32)),
            state.chance.at[state.turn].set(feedback.chance[0]),
            tuple(into.at[state.turn].set(value) for into, value in zip(state.signals, kept, strict=True)),
        )

    return Selector("recording", init, choose, update, feedback=True)
