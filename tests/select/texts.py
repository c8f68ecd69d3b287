"""Made-up texts that bandits are tried on: one round after the other, and what a learner and a fool make of them."""

import functools

import jax.numpy as jnp
import numpy as np

from jaxspec.bench import processes
from jaxspec.bench.oracle import always, best_fixed
from jaxspec.bench.prices import curve_prices
from jaxspec.bench.replay import Replayed, replay
from jaxspec.contracts import MODEL, Selector, Verdict
from jaxspec.select import Kinds, SelectorParams, no_prior
from jaxspec.select.arms import arms_of
from jaxspec.select.cost import CostTable

DEPTH = 8
TOKENS = 4000
PRICES = curve_prices("flat", processes.POOL, DEPTH, 0.1)
KINDS = Kinds(
    processes.POOL.names, tuple(kind == MODEL for kind in processes.POOL.costs), 0, 0, tuple(range(1, DEPTH + 2))
)
ARMS = arms_of(KINDS)
COSTS = CostTable(*(jnp.asarray(each, jnp.float32) for each in PRICES))
PARAMS = SelectorParams(COSTS, no_prior(KINDS))

MODEL_IS_BEST, LOOKUP_IS_BEST = (0.3, 0.8), (0.8, 0.3)


@functools.cache
def text(chances=MODEL_IS_BEST, seed=1):
    return processes.stationary(TOKENS, chances, depth=DEPTH, seed=seed)


@functools.cache
def rates(chances=MODEL_IS_BEST, seed=1) -> np.ndarray:
    """Tokens a unit of cost by every arm, always taken."""
    record = text(chances, seed).record
    return np.asarray([always([record], PRICES, n, k).rate for n, k in zip(ARMS.source, ARMS.lookahead, strict=True)])


def played(selector: Selector, process) -> Replayed:
    return replay(selector, PARAMS, [process.record], PRICES)


def share_of_good(replayed: Replayed, chances=MODEL_IS_BEST, *, within=0.05, last=0.5) -> float:
    """Share of the last rounds whose choice, always taken, comes within a few percent of the best arm."""
    by = {(n, k): rate for n, k, rate in zip(ARMS.source, ARMS.lookahead, rates(chances), strict=True)}
    series = replayed.text(0)
    after = int(len(series.cost) * (1 - last))
    chosen = [by.get((int(n), int(k)), 0.0) for n, k in zip(series.source, series.lookahead, strict=True)][after:]
    return float(np.mean(np.asarray(chosen) >= (1 - within) * max(by.values())))


@functools.cache
def fixed(chances=MODEL_IS_BEST, seed=1) -> Replayed:
    """The best fixed choice."""
    return best_fixed([text(chances, seed).record], PRICES)[1]


def regret_in_quarters(replayed: Replayed, chances=MODEL_IS_BEST) -> np.ndarray:
    """What each quarter of the text has cost beyond the best fixed choice."""
    whole = processes.regret(replayed.text(0), fixed(chances).text(0), np.linspace(0, TOKENS, 5))
    return np.diff(whole)


def deaf(selector: Selector) -> Selector:
    """The selector without what it learns, but for its count of rounds: it goes on choosing as it began."""

    def update(params, state, signals, choice, proposal, verdict, feedback):
        nothing = Verdict(verdict.accepted, verdict.emitted, jnp.zeros_like(verdict.count), None)
        told = feedback._replace(known=jnp.zeros_like(feedback.known), emitted=jnp.zeros_like(feedback.emitted))
        return selector.update(params, state, signals, choice, proposal, nothing, told)

    return selector._replace(update=update)
