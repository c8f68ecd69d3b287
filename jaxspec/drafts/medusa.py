"""Medusa: heads on the target's last hidden state, one a depth, all in one pass.

    hidden state of ..  a  b          b is committed, c was made of it and is pending
    head 1 on it guesses     d        the token after c, which it does not see
    head 2                      e

Cost class: a model pass, of the heads and of as many output matrices as heads; no layer and no cache. Signals:
confidence at each depth. Memory: a hidden state [B, D] a row, and the heads.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxspec.contracts import MODEL, DraftSource, EngineParams, Proposal, View
from jaxspec.drafts.draw import Drawing, begin, own_params
from jaxspec.models.heads import DraftConfig, bind_head, draft_logits, spread
from jaxspec.typing import PyTree, Rows

TOP = 4
"""Likeliest tokens of a head that are handed on for trees."""


class Heads(NamedTuple):
    """What is static about Medusa heads in one setup."""

    name: str
    config: DraftConfig
    layers: int
    lookahead: int
    vocab_size: int
    vocab_width: int
    verify: str


class Scratch(NamedTuple):
    """Every head's likeliest tokens, in the target's ids; what a tree would branch on."""

    tokens: Int[Array, "B A K"]
    log_q: Float[Array, "B A K"]


@functools.lru_cache(maxsize=64)
def medusa(
    name: str,
    config: DraftConfig,
    *,
    layers: int,
    hidden_size: int,
    lookahead: int,
    vocab_size: int,
    vocab_width: int,
    verify: str,
) -> DraftSource:
    """Draft with heads on the target's last hidden state; their parameters are `EngineParams.drafts[name]`.

    Args:
        config: of the heads; a lookahead beyond their number is cut to it.
        layers, hidden_size: of the target. Static.
        lookahead, vocab_size, vocab_width, verify: as in `jaxspec.drafts.lm.lm`. Static.

    Source: Cai et al. 2024, "Medusa" (arXiv:2401.10774).
    """
    heads = Heads(name, config, layers, lookahead, vocab_size, vocab_width, verify)

    def init(rows: int, capacity: int, dtype: DTypeLike) -> Float[Array, "B D"]:
        del capacity
        return jnp.zeros((rows, hidden_size), dtype)

    return DraftSource(
        name=name,
        cost=MODEL,
        init=init,
        propose=functools.partial(_propose, heads),
        observe=lambda state, scratch, view, ran, verdict: state,
        samples=True,
        taps=(layers,),
        absorb=lambda state, features, start, count: _absorb(state, features[layers], count),
        most=config.heads,
    )


def _absorb(state: Float[Array, "B D"], hidden: Float[Array, "B T D"], count: Rows) -> Float[Array, "B D"]:
    """The last committed token's hidden state; a row that commits nothing keeps its own."""
    last = jnp.take_along_axis(hidden, jnp.maximum(count - 1, 0)[:, None, None], axis=1)[:, 0]
    return jnp.where((count > 0)[:, None], last.astype(state.dtype), state)


def _propose(
    heads: Heads, params: EngineParams, view: View, state: PyTree, lookahead: Rows
) -> tuple[Proposal, Scratch]:
    config, own = heads.config, own_params(params, heads.name)
    hidden = state.astype(own["norm.weight"].dtype).T[:, :, None]
    depth = min(heads.lookahead, config.heads)
    vectors = bind_head(config)(own)(hidden)[:depth]
    if config.own_output:
        each = [draft_logits(config, own, x, head=i)[:, 0] for i, x in enumerate(vectors)]
        logits = jnp.stack(each, 1)
    else:
        logits = draft_logits(config, own, jnp.concatenate(vectors, axis=-1))
    begun, take = begin(heads, view, lookahead)

    def body(carry: tuple[jax.Array, Drawing]) -> tuple[jax.Array, Drawing]:
        at, drawing = carry
        said = jax.lax.dynamic_index_in_dim(logits, at, axis=1, keepdims=False)
        return at + 1, take(drawing, spread(said, own["output.inverse"]), at)

    def going(carry: tuple[jax.Array, Drawing]) -> jax.Array:
        at, drawing = carry
        return (at < depth) & jnp.any(drawing.alive & (at < lookahead))

    _, drawn = jax.lax.while_loop(going, body, (jnp.int32(0), begun))
    top, at = jax.lax.top_k(logits, min(TOP, config.vocab))
    tokens = jnp.take(own["output.ids"], at)
    log_q = top - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    return drawn.proposal, Scratch(tokens, log_q)
