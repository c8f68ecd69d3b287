"""A router: a small network on the signals says how far each source's drafts would be taken; nothing is learnt here.

    features of a row, source and depth ──► 32 ──► 32 ──► takes, draws      one network a source
                                      └────────────────►  + a linear part, which begins as the naive weights

takes and draws are what `goodput` learns (its `Prior`); from there on the choice is made as goodput makes it. Trained
on records by scripts/train_router.py.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxspec.contracts import Choice, Proposal, Selector, Signals
from jaxspec.sampling.confidence import ODDS
from jaxspec.select.by_chance import choose_by, continue_by, nothing_told
from jaxspec.select.cost import guess
from jaxspec.select.features import WIDTH, features, naive_weights
from jaxspec.select.goodput import SelectorParams
from jaxspec.select.kinds import Kinds
from jaxspec.select.plan import table_of
from jaxspec.typing import PyTree, RowFloats, Rows

HIDDEN = 32


class Net(NamedTuple):
    """Weights by source, float32; X is takes and draws, H the hidden units."""

    linear: Any  # [N, F, X]
    first: Any  # [N, F, H]
    first_bias: Any  # [N, H]
    second: Any  # [N, H, H]
    second_bias: Any  # [N, H]
    last: Any  # [N, H, X]
    trust: Any  # [N, 2] what a paid source's confidence means: intercept and slope of its log-odds


class Routed(NamedTuple):
    """What the state keeps: nothing but what was told of the last round."""

    told: dict[str, Array]


def naive_net(free: tuple[bool, ...], *, seed: int = 0) -> Net:
    """Weights of somebody who has seen nothing; the hidden part is there, and adds nothing yet.

    Args:
        free: sources whose proposals are at hand in every round.
        seed: of the hidden weights, where training begins.
    """
    sources = len(free)
    first, second = jax.random.split(jax.random.key(seed))
    naive = jnp.asarray(naive_weights(free))
    hidden = jnp.zeros((sources, HIDDEN), jnp.float32)
    return Net(
        linear=jnp.stack([naive, naive], -1),
        first=jax.random.normal(first, (sources, WIDTH, HIDDEN), jnp.float32) * (2 / 8) ** 0.5,  # about 8 are not 0
        first_bias=hidden,
        second=jax.random.normal(second, (sources, HIDDEN, HIDDEN), jnp.float32) * (2 / HIDDEN) ** 0.5,
        second_bias=hidden,
        last=jnp.zeros((sources, HIDDEN, 2), jnp.float32),
        trust=jnp.broadcast_to(jnp.asarray([0.0, ODDS], jnp.float32), (sources, 2)),
    )


def log_odds(net: Net, x: Float[Array, "B N A F"]) -> Float[Array, "B N A 2"]:
    """That a draft is taken, and that a paid source goes on to draw it."""

    def hidden(x: Array, weights: Array, bias: Array) -> Array:
        return jax.nn.relu(jnp.einsum("bnaf,nfh->bnah", x, weights) + bias[None, :, None, :])

    deep = hidden(hidden(x, net.first, net.first_bias), net.second, net.second_bias)
    return jnp.einsum("bnaf,nfx->bnax", x, net.linear) + jnp.einsum("bnah,nhx->bnax", deep, net.last)


@functools.lru_cache(maxsize=256)
def router(kinds: Kinds, *, tails: bool = True, stops: bool = True, clusters: int = 0) -> Selector:
    """The choice of goodput by a trained network's chances. Its parameters are `SelectorParams` whose prior is a `Net`,
    or () for the naive one.

    Args:
        tails, stops, clusters: as in `goodput`. Static.
    """

    def given(params: PyTree) -> SelectorParams:
        if params:
            return params
        return SelectorParams(guess(kinds.passes, kinds.nodes, kinds.windows), naive_net(kinds.free))

    def init(rows: int, sources: int) -> Routed:
        return Routed(nothing_told(rows, sources))

    def choose(params: PyTree, state: Routed, signals: Signals) -> Choice:
        known = given(params)
        chance = jax.nn.sigmoid(log_odds(known.prior, features(signals, kinds.lookahead, kinds.free)))
        none = jnp.zeros(len(kinds.names), jnp.float32)
        trust = functools.partial(_trust, known.prior)
        table = table_of(known.cost, signals, chance[..., 0], chance[..., 1], (none, none), kinds)
        return choose_by(known.cost, table, signals, kinds, trust, stops=stops)

    def tail(params: PyTree, state: Routed, signals: Signals, choice: Choice, head: Proposal) -> Choice:
        known = given(params)
        x = features(signals._replace(seen=None), kinds.lookahead, kinds.free)
        chance = jax.nn.sigmoid(log_odds(known.prior, x)[..., 0])
        return continue_by(known.cost, signals, chance, choice, head, kinds, functools.partial(_trust, known.prior))

    def update(params: PyTree, state: Routed, signals: Signals, choice: Choice, *_: Any) -> Routed:
        return state if choice.told is None else Routed(choice.told)

    own = {"certainty": True, "tail": tail if tails else None, "clusters": clusters}
    return Selector("router", init, choose, update, **own)


def _trust(net: Net, source: Rows) -> tuple[RowFloats, RowFloats]:
    return net.trust[source, 0], net.trust[source, 1]


__all__ = ["HIDDEN", "Net", "Routed", "log_odds", "naive_net", "router"]
