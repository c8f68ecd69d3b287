"""Composition: a model draft that has stopped is continued by a free source, from the text that the drafts would make.

    text .. 5 8 | drafts 2 7 (a model's)  ->  free sources look at .. 5 8 2 7  ->  3 1 4  ->  window 2 7 3 1 4

The tail costs places in the window, no pass. Its drafts are point masses, whatever the head's were drawn from.
"""

import jax
import jax.numpy as jnp

from jaxspec.cache import append
from jaxspec.contracts import FREE, Choice, EngineParams, Proposal, Setup, View
from jaxspec.drafts.bank import offered_by
from jaxspec.typing import PyTree, RowMask, Rows


def continued(
    setup: Setup,
    params: EngineParams,
    view: View,
    states: tuple[PyTree, ...],
    choice: Choice,
    proposal: Proposal,
    state: PyTree,
) -> tuple[Proposal, Choice]:
    """The proposal with the tail that the selector wants for it, and the choice with that tail.

    Free sources are asked again only in rounds in which a row has drafts of a source that costs a pass, and room left.
    """
    rows = len(view.length)
    zeros = jnp.zeros(rows, jnp.int32)
    choice = choice._replace(tail=zeros, tail_lookahead=zeros)
    free = [index for index, source in enumerate(setup.sources) if source.cost == FREE and source.branch is None]
    if setup.selector.tail is None or len(free) == len(setup.sources) or len(free) == 1:
        return proposal, choice
    costly = jnp.asarray([source.cost != FREE for source in setup.sources])
    cap = jnp.minimum(view.request.limit - view.length - 1, view.request.max_lookahead)
    room = jnp.clip(jnp.minimum(cap, setup.lookahead) - proposal.count, 0)
    wanted = view.active & costly[choice.source] & (proposal.count > 0) & (room > 0)
    if view.request.steering is not None:
        wanted &= view.request.steering.pinned < 0

    def go_on() -> tuple[Proposal, Choice]:
        ahead = _as_if(view, proposal, wanted)
        tails, signals = offered_by(setup, params, ahead, states, jnp.where(wanted, room, 0), free)
        picked = setup.selector.tail(params.selector, state, signals, choice, proposal)
        most = jnp.take_along_axis(signals.offered, picked.tail[:, None], axis=1)[:, 0]
        length = jnp.where(wanted & (picked.tail > 0), jnp.clip(picked.tail_lookahead, 0, most), 0)
        settled = choice._replace(tail=jnp.where(length > 0, picked.tail, 0), tail_lookahead=length)
        joined = proposal
        for index, tail in tails.items():
            joined = _join(joined, proposal.count, tail, jnp.where(settled.tail == index, length, 0))
        return joined, settled

    return jax.lax.cond(jnp.any(wanted), go_on, lambda: (proposal, choice))


def _as_if(view: View, proposal: Proposal, rows: RowMask) -> View:
    """The view with the drafts of the given rows taken for text."""
    count = jnp.where(rows, proposal.count, 0)
    return view._replace(tokens=append(view.tokens, proposal.tokens, view.length, count), length=view.length + count)


def _join(proposal: Proposal, head: Rows, tail: Proposal, length: Rows) -> Proposal:
    """`proposal` with the first `length` drafts of `tail` from depth `head` on.

    head 2, length 3:    2 7 . . .   ->   2 7 3 1 4
    """
    index = jnp.arange(proposal.tokens.shape[1], dtype=jnp.int32)[None, :]
    here = (index >= head[:, None]) & (index < (head + length)[:, None])
    at = jnp.clip(index - head[:, None], 0, index.shape[1] - 1)
    tokens = jnp.where(here, jnp.take_along_axis(tail.tokens, at, axis=1), proposal.tokens)
    laws = proposal.q_log
    if laws is not None:
        ids = jax.lax.broadcasted_iota(jnp.int32, laws.shape, 2)
        laws = jnp.where(here[..., None], jnp.where(ids == tokens[..., None], 0.0, -jnp.inf), laws)
    return proposal._replace(tokens=tokens, count=proposal.count + length, q_log=laws)


__all__ = ["continued"]
