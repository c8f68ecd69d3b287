"""Early exit: the target's first layers with its own final norm and head draft; the target's cache serves both.

Drafting runs the pending token and each draft through the first `layers` layers and keeps their residual streams and
keys and values. Where every row of a round drafts this way, verification starts from there:

    window      pending  d1  d2  d3
    layers 0-k     x     x   x   x    run while drafting, d3 for this reason alone
    layers k-L     o     o   o   o    run by verification
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.contracts import MODEL, DraftSource, EngineParams, Features, Proposal, Reuse, View
from jaxspec.drafts.draw import Drawing, begin, own_params
from jaxspec.models.api import LanguageModel
from jaxspec.models.heads import DraftConfig, bind_head, draft_logits, spread
from jaxspec.models.tapped import layers_of, tapped
from jaxspec.models.windows import allocate, place, token_axes
from jaxspec.typing import PyTree, Rows


class Scratch(NamedTuple):
    """Residual streams [B, A+1, D] and keys and values of the window in the first layers."""

    hidden: jax.Array
    window: PyTree
    features: Features


class Exit(NamedTuple):
    """What is static about an early exit in one setup."""

    name: str
    model: LanguageModel
    layers: int
    lookahead: int
    vocab_size: int
    vocab_width: int
    verify: str
    taps: tuple[int, ...]
    head: DraftConfig | None


@functools.lru_cache(maxsize=64)
def early_exit(
    model: LanguageModel,
    layers: int,
    *,
    lookahead: int,
    vocab_size: int,
    vocab_width: int,
    verify: str,
    taps: tuple[int, ...] = (),
    head: DraftConfig | None = None,
    name: str | None = None,
) -> DraftSource:
    """Draft with the target's first `layers` layers; no cache of its own.

    Args:
        model: the target, as bound for the setup; it must take `layers=` and `hidden=` in `forward`.
        layers: how many layers draft, from 1 to all but one. Static.
        lookahead, vocab_size, vocab_width, verify: as in `jaxspec.drafts.lm.lm`. Static.
        taps: the setup's, so that drafting keeps what other sources want of these layers. Static.
        head: a trained adapter, norm and vocabulary, whose parameters are `EngineParams.drafts[name]`; the target's
            own norm and output matrix where None. Static.
        name: the source's; "exit:LAYERS" where None.

    Source: Elhoushi et al. 2024, "LayerSkip".

    Raises:
        ValueError: `layers` out of range.
    """
    total = layers_of(model)
    if not 1 <= layers < total:
        raise ValueError(
            f"exit:{layers} asks for {layers} layers; the target has {total}, so give exit:1 to exit:{total - 1}"
        )
    name = name or f"exit:{layers}"
    kept = tuple(tap for tap in taps if tap <= layers)
    exit_ = Exit(name, model, layers, lookahead, vocab_size, vocab_width, verify, kept, head)
    return DraftSource(
        name=name,
        cost=MODEL,
        init=lambda rows, capacity, dtype: (),
        propose=functools.partial(_propose, exit_),
        observe=lambda state, scratch, view, ran, verdict: state,
        samples=True,
        reuse=lambda scratch: Reuse(scratch.hidden, scratch.window, scratch.features),
        reuse_layers=layers,
    )


def _propose(exit_: Exit, params: EngineParams, view: View, state: PyTree, lookahead: Rows) -> tuple[Proposal, Scratch]:
    del state
    rows, carried = len(view.length), exit_.lookahead + 1
    slots = jnp.arange(carried + 1, dtype=jnp.int32)

    def run(tokens: jax.Array, depth: jax.Array | int, scratch: Scratch | None, *, logits: bool) -> tuple:
        """Window token `depth` [B, 1] through the first layers, after the ones in scratch."""
        positions = view.length[:, None] - 1 + depth + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :]
        own = jnp.ones((rows, tokens.shape[1], tokens.shape[1]), bool)
        seen = (
            own
            if scratch is None
            else jnp.broadcast_to(((slots < depth) | (slots == carried))[None, None], (rows, 1, carried + 1))
        )
        window = None if scratch is None else scratch.window
        inputs = (exit_.model, params.target, tokens, positions, seen, view.cache, window)
        own_logits = logits and exit_.head is None
        out, features = tapped(*inputs, taps=exit_.taps, stop=exit_.layers, logits=own_logits)
        said = _said(exit_, params, out.hidden) if logits and exit_.head is not None else out.logits
        return said, Scratch(out.hidden, out.window, features)

    pending = jnp.take_along_axis(view.tokens, view.length[:, None] - 1, axis=1)
    shapes = [
        jax.eval_shape(lambda t: run(t, 0, None, logits=False)[1], jnp.zeros((rows, w), jnp.int32)) for w in (1, 2)
    ]
    axes = token_axes(*shapes)
    begun, take = begin(exit_, view, lookahead)

    def body(carry: tuple[jax.Array, jax.Array, Drawing, Scratch]) -> tuple[jax.Array, jax.Array, Drawing, Scratch]:
        depth, token, drawing, scratch = carry
        logits, fresh = run(token, depth, scratch, logits=True)
        drawing = take(drawing, logits[:, 0], depth)
        token = jax.lax.dynamic_slice_in_dim(drawing.proposal.tokens, depth, 1, axis=1)
        return depth + 1, token, drawing, place(scratch, fresh, axes, depth)

    def going(carry: tuple[jax.Array, jax.Array, Drawing, Scratch]) -> jax.Array:
        depth, _, drawing, _ = carry
        return jnp.any(drawing.alive & (depth < lookahead))

    start = (
        jnp.int32(0),
        pending,
        begun,
        allocate(shapes[0], axes, carried),
    )
    depth, token, drawing, scratch = jax.lax.while_loop(going, body, start)
    # The last draft runs too where verification will start from these layers; a row that stopped early needs no more.
    reused = jnp.all((lookahead > 0) | ~view.active)
    last = lambda: place(scratch, run(token, depth, scratch, logits=False)[1], axes, depth)  # noqa: E731
    return drawing.proposal, jax.lax.cond(reused, last, lambda: scratch)


def _said(exit_: Exit, params: EngineParams, hidden: jax.Array) -> jax.Array:
    """Logits [B, T, V] of the trained head."""
    assert exit_.head is not None
    own = own_params(params, exit_.name)
    x = bind_head(exit_.head)(own)(hidden.transpose(2, 0, 1))
    return spread(draft_logits(exit_.head, own, x), own["output.inverse"])
