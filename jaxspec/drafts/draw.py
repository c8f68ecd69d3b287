"""How a model draft turns its logits into drafted tokens, one depth at a time, shared by every such source."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from jaxspec.contracts import EngineParams, Proposal, View
from jaxspec.drafts.none import empty_proposal
from jaxspec.sampling import Purpose, argmax, gumbel, pick, warp
from jaxspec.sampling.confidence import goes_on, trusted
from jaxspec.typing import RowFloats, RowMask, Rows

Take = Callable[["Drawing", jax.Array, jax.Array], "Drawing"]
"""(drawing, logits [B, Vq], depth) -> the drawing with one draft more."""


class Drawing(NamedTuple):
    """Drafts so far, and the rows that go on."""

    proposal: Proposal
    alive: RowMask
    chain: RowFloats  # chance that the target takes all drafts so far, by the confidence that the draft had in each
    tokens: RowFloats  # expected of the round with the drafts so far


def own_params(params: EngineParams, name: str) -> Any:
    """A model draft's own parameters.

    Raises:
        ValueError: there are none.
    """
    if name not in params.drafts:
        raise ValueError(f"draft {name!r} has no parameters; give them in EngineParams.drafts[{name!r}]")
    return params.drafts[name]


@runtime_checkable
class Made(Protocol):
    """How a source that draws was made: static, as in `jaxspec.drafts.lm.lm`."""

    @property
    def lookahead(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def vocab_width(self) -> int: ...

    @property
    def verify(self) -> str: ...


def begin(made: Made, view: View, lookahead: Rows) -> tuple[Drawing, Take]:
    """Nothing drawn yet, and `draw` with what the source was made with. Rows with lookahead 0 never start."""
    proposal = empty_proposal(view.length.shape[0], made.lookahead)
    if made.verify == "rejection":
        proposal = proposal._replace(q_log=jnp.zeros((*proposal.tokens.shape, made.vocab_width), jnp.float32))
    one = jnp.ones(len(view.length), jnp.float32)
    begun = Drawing(proposal._replace(sampled=samples(view)), (lookahead > 0) & view.active, one, one)
    sizes = {"coupled": made.verify == "coupled", "vocab": made.vocab_size, "width": made.vocab_width}
    return begun, functools.partial(draw, view=view, lookahead=lookahead, **sizes)


def samples(view: View) -> RowMask:
    """Rows whose drafts are sampled: those that sample at all and whose draft temperature is above 0."""
    return (view.request.warpers.temperature > 0) & (view.request.draft_temperature > 0)


def draw(
    drawing: Drawing,
    logits: jax.Array,
    depth: jax.Array,
    view: View,
    lookahead: Rows,
    *,
    coupled: bool,
    vocab: int,
    width: int,
) -> Drawing:
    """Draw draft number `depth` (0-based) from the draft's logits [B, Vq].

    A row stops before this draft when the largest probability of its law is under the row's threshold, and after it
    when one more is not worth its time (`View.stop`): decided from the laws alone, never by the token that was drawn
    from one, so that the law of the output stays exact.

    Args:
        coupled: draw with the noise of the token's own position, as the target will.
        vocab: true vocabulary, static; ids at or beyond it are never drafted.
        width: the target's padded vocabulary, static; laws are padded or cut to it.
    """
    logits = _fit(logits.astype(jnp.float32), vocab, width)[:, None]
    request, proposal = view.request, drawing.proposal
    heat = jnp.where(samples(view), request.warpers.temperature * request.draft_temperature, 0.0)
    positions = view.length[:, None] + depth
    best = argmax(logits)

    def sampled() -> tuple[jax.Array, jax.Array, jax.Array]:
        law = warp(logits, dataclasses.replace(request.warpers, temperature=heat))
        if coupled:
            noise = gumbel(request.seed, positions, width)
        else:
            noise = gumbel(request.seed, positions, width, purpose=Purpose.DRAFT, start=view.length)
        return pick(law, noise), jnp.exp(jnp.max(law, -1)), law

    def greedy() -> tuple[jax.Array, jax.Array, jax.Array]:
        law = jnp.zeros_like(logits) if proposal.q_log is not None else logits
        return best, _top(logits), law

    token, top, law = jax.lax.cond(jnp.any(heat > 0), sampled, greedy)
    top = jnp.where(heat[:, None] > 0, top, _top(logits))
    drawn = drawing.alive & (depth < lookahead) & (top[:, 0] >= request.draft_confidence)
    alive, chain, tokens = drawn, drawing.chain, drawing.tokens
    if view.stop is not None:
        chain = chain * trusted(top, view.stop.intercept, view.stop.slope)[:, 0]
        tokens = tokens + chain
        alive = drawn & goes_on(chain, tokens, depth.astype(jnp.float32) + 1, view.stop.base, view.stop.step)
    put = jax.lax.dynamic_update_slice_in_dim
    proposal = proposal._replace(
        tokens=put(proposal.tokens, token.astype(jnp.int32), depth, 1),
        confidence=put(proposal.confidence, top, depth, 1),
        count=proposal.count + drawn.astype(jnp.int32),
        q_log=None if proposal.q_log is None else put(proposal.q_log, law, depth, 1),
    )
    return Drawing(proposal, alive, chain, tokens)


def _top(logits: jax.Array) -> jax.Array:
    """Largest probability of the draft's own softmax, [B, 1]."""
    return jnp.exp(jnp.max(logits, -1) - jax.nn.logsumexp(logits, -1))


def _fit(logits: jax.Array, vocab: int, width: int) -> jax.Array:
    """Logits [B, width]: cut or padded, -inf at and beyond the true vocabulary."""
    have = min(vocab, logits.shape[1])
    return jnp.pad(logits[:, :have], ((0, 0), (0, width - have)), constant_values=-jnp.inf)
