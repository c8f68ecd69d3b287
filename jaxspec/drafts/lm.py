"""A smaller language model as draft: own cache, lazy catch-up, one token a pass.

The cache holds a prefix of the known tokens. `lag` counts those it misses, the pending last token apart.

    tokens      a b c d e f      length 6; f is pending
    cache       a b c            lag 2 = d e
    first pass        d e f      one pass takes the lag and gives the law of the first draft
    then                    x y  one token a pass; the last draft is not run, so a fully accepted round leaves lag 1
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxspec.buckets import bucket_index
from jaxspec.contracts import MODEL, DraftSource, EngineParams, Proposal, Verdict, View
from jaxspec.drafts.draw import Drawing, begin, own_params
from jaxspec.models.api import LanguageModel, Output
from jaxspec.models.windows import in_branch, pad, place, token_axes
from jaxspec.tree import ancestors, chain
from jaxspec.typing import PyTree, RowMask, Rows

FIRST = (1, 2, 8)
"""Widths of a round's first pass: the pending token and up to 7 tokens of lag."""

CATCH_UP = 64
"""Tokens a catch-up pass takes."""


class LMState(NamedTuple):
    """A draft model's cache and how many tokens of each row it holds."""

    cache: PyTree
    length: Rows


class Scratch(NamedTuple):
    """A round's uncommitted keys and values: FIRST[-1] slots of the first pass, then one a draft."""

    window: PyTree
    first: Rows  # tokens of the first pass
    drafts: Rows  # drafts that have been run, and so have keys and values


class Draft(NamedTuple):
    """What is static about one draft model in one setup."""

    name: str
    model: LanguageModel
    lookahead: int
    vocab_size: int
    vocab_width: int
    verify: str


@functools.lru_cache(maxsize=64)
def lm(
    name: str,
    model: LanguageModel,
    *,
    lookahead: int,
    vocab_size: int,
    vocab_width: int,
    verify: str,
) -> DraftSource:
    """Draft with a language model; its parameters are `EngineParams.drafts[name]`.

    Args:
        name: the source's name, for example "lm:smollm2-135m-instruct".
        model: a bound model whose vocabulary agrees with the target's.
        lookahead: drafts a round at the most. Static.
        vocab_size: true vocabulary of the target. Static.
        vocab_width: the target's padded vocabulary. Static.
        verify: "rejection" keeps the draft's laws, "coupled" draws with the target's noise. Static.

    Source: Leviathan et al. 2023, Chen et al. 2023.
    """
    draft = Draft(name, model, lookahead, vocab_size, vocab_width, verify)
    headroom = max(CATCH_UP, FIRST[-1] + lookahead)

    def init(rows: int, capacity: int, dtype: DTypeLike) -> LMState:
        cache = model.init_cache(rows, capacity + headroom, headroom=headroom, dtype=dtype)
        return LMState(cache, jnp.zeros(rows, jnp.int32))

    return DraftSource(
        name=name,
        cost=MODEL,
        init=init,
        propose=functools.partial(_propose, draft),
        observe=functools.partial(_observe, draft),
        catch_up=functools.partial(_catch_up, draft),
        lag=lag,
        max_positions=model.config.max_positions,
        samples=True,
    )


def lag(state: LMState, view: View) -> Rows:
    """Known tokens that the draft's cache misses, the pending one apart."""
    return view.length - 1 - state.length


def _catch_up(draft: Draft, params: EngineParams, view: View, state: LMState, wanted: RowMask) -> tuple[LMState, Rows]:
    """Passes of CATCH_UP tokens until what is missing fits a round's first pass; usually none.

    Outside the switch, since it writes the cache. Rows that are not wanted take nothing.
    """

    def behind(state: LMState) -> RowMask:
        return wanted & (lag(state, view) >= FIRST[-1])

    def body(state: LMState) -> LMState:
        count = jnp.where(wanted, jnp.clip(lag(state, view), 0, CATCH_UP), 0)
        taken = functools.partial(_pass, draft, params, view, state, CATCH_UP, logits=False)
        window = in_branch(lambda: taken().window, jnp.any(count > 0))
        return LMState(draft.model.commit(state.cache, window, None, count), state.length + count)

    done = jax.lax.while_loop(lambda s: jnp.any(behind(s)), body, state)
    return done, done.length - state.length


def _pass(draft: Draft, params: EngineParams, view: View, state: LMState, width: int, *, logits: bool) -> Output:
    """The `width` known tokens after the cache's; those past the end are padding that nothing attends to."""
    at = state.length[:, None] + jnp.arange(width, dtype=jnp.int32)[None, :]
    tokens = jnp.take_along_axis(view.tokens, jnp.minimum(at, view.tokens.shape[1] - 1), axis=1)
    mask = jnp.broadcast_to(ancestors(chain(width))[None], (len(at), width, width))
    return draft.model.forward(own_params(params, draft.name), tokens, at, mask, state.cache, logits=logits)


def _propose(
    draft: Draft, params: EngineParams, view: View, state: LMState, lookahead: Rows
) -> tuple[Proposal, Scratch]:
    first = jnp.clip(lag(state, view) + 1, 1, FIRST[-1])
    axes = token_axes(*(_window_shapes(draft, params, view, state, w) for w in (1, 2)))
    carried = FIRST[-1] + draft.lookahead

    def opening(width: int) -> tuple[jax.Array, PyTree]:
        out = _pass(draft, params, view, state, width, logits=True)
        last = jnp.minimum(first, width) - 1
        return jnp.take_along_axis(out.logits, last[:, None, None], axis=1)[:, 0], pad(out.window, axes, carried)

    widest = jnp.max(jnp.where(lookahead > 0, first, 1))
    branches = [functools.partial(opening, width) for width in FIRST]
    logits, window = jax.lax.switch(bucket_index(widest, FIRST), branches)
    begun, take = begin(draft, view, lookahead)
    slots = jnp.arange(carried + 1, dtype=jnp.int32)[None, :]

    def body(carry: tuple[jax.Array, Drawing, PyTree]) -> tuple[jax.Array, Drawing, PyTree]:
        depth, drawing, window = carry
        token = jax.lax.dynamic_slice_in_dim(drawing.proposal.tokens, depth - 1, 1, axis=1)
        position = view.length[:, None] + depth - 1
        seen = (slots < first[:, None]) | ((slots >= FIRST[-1]) & (slots < FIRST[-1] + depth - 1)) | (slots == carried)
        out = draft.model.forward(params.drafts[draft.name], token, position, seen[:, None], state.cache, window)
        window = place(window, out.window, axes, FIRST[-1] + depth - 1)
        return depth + 1, take(drawing, out.logits[:, 0], depth), window

    def going(carry: tuple[jax.Array, Drawing, PyTree]) -> jax.Array:
        depth, drawing, _ = carry
        return jnp.any(drawing.alive & (depth < lookahead))

    start = (jnp.int32(1), take(begun, logits, jnp.int32(0)), window)
    depth, drawing, window = jax.lax.while_loop(going, body, start)
    return drawing.proposal, Scratch(window, first, jnp.minimum(drawing.proposal.count, depth - 1))


def _window_shapes(draft: Draft, params: EngineParams, view: View, state: LMState, width: int) -> PyTree:
    return jax.eval_shape(lambda p: _pass(draft, p, view, state, width, logits=False).window, params)


def _observe(draft: Draft, state: LMState, scratch: Scratch, view: View, ran: RowMask, verdict: Verdict) -> LMState:
    """Commit the first pass and the drafts that were emitted; the last token emitted is the next round's pending one.

    first 2, emitted 3 (two drafts and the bonus), 3 drafts run:   slots  0 1 | 8 9
    """
    emitted = jnp.minimum(jnp.maximum(verdict.count - 1, 0), scratch.drafts)
    count = jnp.where(ran, scratch.first + emitted, 0)
    index = jnp.arange(FIRST[-1] + draft.lookahead, dtype=jnp.int32)[None, :]
    path = jnp.where(index < scratch.first[:, None], index, index - scratch.first[:, None] + FIRST[-1])
    path = jnp.minimum(path, FIRST[-1] + draft.lookahead - 1)
    return LMState(draft.model.commit(state.cache, scratch.window, path, count), state.length + count)
