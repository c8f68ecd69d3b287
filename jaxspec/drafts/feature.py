"""A feature head (EAGLE-3 kind): one layer that goes on in the target's feature space, with a cache of its own.

Pair i is (the target's features of token i, the embedding of token i + 1); the layer makes of it a guess at token
i + 2. A drafted token has no features yet: what the layer made of the pair before stands in for them.

    known       a b c d        d is pending: features of a b c exist
    pairs       ab bc cd       committed in the layer's own cache, as many as were seen; the rest is lag
    first pass  .. cd   -> x   lag and the last pair in one pass
    then        dx -> y, xy -> z    on the layer's own outputs; not kept

Cost class: a model pass, of one layer and one output matrix a depth. Signals: confidence at each depth, lag. Memory:
keys and values of one layer, and the features of every token, [B, S, taps x D].
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxspec.buckets import bucket_index
from jaxspec.cache import Cache, LayerCache, Window, commit, for_reading, init_cache, visible
from jaxspec.contracts import MODEL, DraftSource, EngineParams, Features, Proposal, Verdict, View
from jaxspec.drafts.draw import begin, own_params
from jaxspec.models.heads import DraftConfig, bind_head, draft_logits, spread
from jaxspec.models.layers import rope_tables
from jaxspec.models.rope import frequencies
from jaxspec.models.windows import in_branch
from jaxspec.tree import ancestors, chain
from jaxspec.typing import RowMask, Rows

FIRST = (1, 4, 8)
"""Widths of a round's first pass: the newest pair and up to 7 pairs of lag."""

CATCH_UP = 64
"""Pairs a catch-up pass takes."""


class FeatureState(NamedTuple):
    """The layer's cache of pairs, and the target's features of all committed tokens."""

    cache: Cache
    features: Float[Array, "B S X"]  # taps side by side; entries at and beyond the row's end mean nothing


class Scratch(NamedTuple):
    """Keys and values of the first pass; those of drafts are not kept."""

    window: Window
    first: Rows


class Head(NamedTuple):
    """What is static about a feature head in one setup."""

    name: str
    config: DraftConfig
    lookahead: int
    vocab_size: int
    vocab_width: int
    verify: str


@functools.lru_cache(maxsize=64)
def feature(
    name: str, config: DraftConfig, *, lookahead: int, headroom: int, vocab_size: int, vocab_width: int, verify: str
) -> DraftSource:
    """Draft with a feature head; its parameters are `EngineParams.drafts[name]`.

    Args:
        config: of the head, with the layers of the target whose features it reads.
        headroom: most tokens whose features arrive at once, in tokens. Static.
        lookahead, vocab_size, vocab_width, verify: as in `jaxspec.drafts.lm.lm`. Static.

    Source: Li et al. 2025, "EAGLE-3" (arXiv:2503.01840).
    """
    head = Head(name, config, lookahead, vocab_size, vocab_width, verify)
    body = config.body
    room = max(headroom, CATCH_UP)

    def init(rows: int, capacity: int, dtype: DTypeLike) -> FeatureState:
        sizes = {"kv_heads": body.num_kv_heads, "head_dim": body.head_dim}
        cache = init_cache(rows, capacity + CATCH_UP, **sizes, windows=(None,), headroom=CATCH_UP, dtype=dtype)
        store = jnp.zeros((rows, capacity + room, len(config.taps) * config.feature_size), dtype)
        return FeatureState(cache, store)

    return DraftSource(
        name=name,
        cost=MODEL,
        init=init,
        propose=functools.partial(_propose, head),
        observe=functools.partial(_observe, head),
        catch_up=functools.partial(_catch_up, head),
        lag=lag,
        max_positions=body.max_positions,
        samples=True,
        taps=config.taps,
        absorb=functools.partial(_absorb, config.taps),
    )


def lag(state: FeatureState, view: View) -> Rows:
    """Pairs that the layer's cache misses, the newest apart."""
    return jnp.maximum(view.length - 2 - state.cache.length, 0)


def _absorb(taps: tuple[int, ...], state: FeatureState, features: Features, start: Rows, count: Rows) -> FeatureState:
    """Features at each row's end; what lies past `count` is overwritten by the next, or lies beyond the row's end."""
    fresh = jnp.concatenate([features[tap] for tap in taps], axis=-1).astype(state.features.dtype)
    store = state.features
    for row in range(len(count)):
        store = jax.lax.dynamic_update_slice(store, fresh[row : row + 1], (row, start[row], 0))
    return state._replace(features=store)


class _Pass(NamedTuple):
    hidden: Float[Array, "D B T"]  # the layer's output
    k: jax.Array
    v: jax.Array
    logits: Float[Array, "B T Q"] | None


def _layer(
    head: Head,
    params: EngineParams,
    state: FeatureState,
    feature: Float[Array, "D B T"],
    tokens: jax.Array,
    positions: jax.Array,
    mask: jax.Array,
    carried: tuple[jax.Array, jax.Array] | None,
    *,
    logits: bool,
) -> _Pass:
    """The layer over pairs at `positions`, whose second tokens are `tokens`, all [B, T]."""
    config, own = head.config, own_params(params, head.name)
    body, module = config.body, bind_head(config)(own)
    embedded = jnp.take(own["embed_tokens.weight"], tokens, axis=0, mode="clip").transpose(2, 0, 1)
    if body.embed_scale != 1.0:
        embedded = embedded * jnp.asarray(body.embed_scale, embedded.dtype)
    rope = rope_tables(positions, *frequencies(body, positions, local=False))
    cache = for_reading(state.cache)
    past = cache.layers[0]
    seen = visible(cache.length, positions, past.k.shape[2], None, None)
    x, read = module.enter(feature, embedded)
    mixed, k, v = module.self_attn(read, rope, LayerCache(past.k, past.v), seen, carried, mask)
    x = module.leave(x, mixed)
    said = draft_logits(config, own, module.say(x)) if logits else None
    return _Pass(x, k, v, said)


def _pairs(head: Head, params: EngineParams, view: View, state: FeatureState, width: int, *, logits: bool) -> _Pass:
    """The `width` pairs after those in the cache; those that do not exist yet are padding nobody reads."""
    own = own_params(params, head.name)
    at = state.cache.length[:, None] + jnp.arange(width, dtype=jnp.int32)[None, :]
    tokens = jnp.take_along_axis(view.tokens, jnp.minimum(at + 1, view.tokens.shape[1] - 1), axis=1)
    rows = [jax.lax.dynamic_slice_in_dim(state.features[r], state.cache.length[r], width) for r in range(len(at))]
    raw = jnp.stack(rows).astype(own["norm.weight"].dtype).transpose(2, 0, 1)
    feature = bind_head(head.config)(own).fuse(jnp.split(raw, len(head.config.taps)))
    mask = jnp.broadcast_to(ancestors(chain(width))[None], (len(at), width, width))
    return _layer(head, params, state, feature, tokens, at, mask, None, logits=logits)


def _catch_up(
    head: Head, params: EngineParams, view: View, state: FeatureState, wanted: RowMask
) -> tuple[FeatureState, Rows]:
    """Passes of CATCH_UP pairs until what is missing fits a round's first pass."""

    def behind(state: FeatureState) -> RowMask:
        return wanted & (lag(state, view) >= FIRST[-1])

    def body(state: FeatureState) -> FeatureState:
        count = jnp.where(wanted, jnp.clip(lag(state, view), 0, CATCH_UP), 0)

        def taken() -> tuple[jax.Array, jax.Array]:
            out = _pairs(head, params, view, state, CATCH_UP, logits=False)
            return out.k, out.v

        k, v = in_branch(taken, jnp.any(count > 0))
        positions = jnp.zeros((len(count), CATCH_UP), jnp.int32)
        return state._replace(cache=commit(state.cache, Window((k,), (v,), positions), None, count))

    done = jax.lax.while_loop(lambda s: jnp.any(behind(s)), body, state)
    return done, done.cache.length - state.cache.length


def _propose(
    head: Head, params: EngineParams, view: View, state: FeatureState, lookahead: Rows
) -> tuple[Proposal, Scratch]:
    own = own_params(params, head.name)
    # A row of one token has no pair yet: it drafts nothing.
    lookahead = jnp.where(view.length >= 2, lookahead, 0)
    first = jnp.clip(view.length - 1 - state.cache.length, 1, FIRST[-1])
    carried = FIRST[-1] + head.lookahead

    def opening(width: int) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        out = _pairs(head, params, view, state, width, logits=False)
        last = jnp.minimum(first, width) - 1
        hidden = jnp.take_along_axis(out.hidden, last[None, :, None], axis=2)
        spare = ((0, 0), (0, 0), (0, carried - width), (0, 0))
        logits = draft_logits(head.config, own, bind_head(head.config)(own).say(hidden))
        return logits[:, 0], hidden, jnp.pad(out.k, spare), jnp.pad(out.v, spare)

    widest = jnp.max(jnp.where(lookahead > 0, first, 1))
    branches = [functools.partial(opening, width) for width in FIRST]
    logits, hidden, k, v = jax.lax.switch(bucket_index(widest, FIRST), branches)
    begun, take = begin(head, view, lookahead)
    slots = jnp.arange(carried + 1, dtype=jnp.int32)[None, :]

    def body(carry: tuple) -> tuple:
        depth, drawing, hidden, k, v = carry
        token = jax.lax.dynamic_slice_in_dim(drawing.proposal.tokens, depth - 1, 1, axis=1)
        position = view.length[:, None] - 2 + depth
        seen = (slots < first[:, None]) | ((slots >= FIRST[-1]) & (slots < FIRST[-1] + depth - 1)) | (slots == carried)
        out = _layer(head, params, state, hidden, token, position, seen[:, None], (k, v), logits=True)
        put = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=FIRST[-1] + depth - 1, axis=2)
        assert out.logits is not None
        drawing = take(drawing, spread(out.logits[:, 0], own["output.inverse"]), depth)
        return depth + 1, drawing, out.hidden, put(k, out.k), put(v, out.v)

    def going(carry: tuple) -> jax.Array:
        depth, drawing, *_ = carry
        return jnp.any(drawing.alive & (depth < lookahead))

    begun = take(begun, spread(logits, own["output.inverse"]), jnp.int32(0))
    _, drawing, _, k, v = jax.lax.while_loop(going, body, (jnp.int32(1), begun, hidden, k, v))
    window = Window((k[:, :, : FIRST[-1]],), (v[:, :, : FIRST[-1]],), jnp.zeros((len(first), FIRST[-1]), jnp.int32))
    return drawing.proposal, Scratch(window, first)


def _observe(
    head: Head, state: FeatureState, scratch: Scratch, view: View, ran: RowMask, verdict: Verdict
) -> FeatureState:
    """Commit the first pass's pairs; those of the tokens just emitted have features now and come next time."""
    del head, verdict
    count = jnp.where(ran & (view.length >= 2), scratch.first, 0)
    return state._replace(cache=commit(state.cache, scratch.window, None, count))
