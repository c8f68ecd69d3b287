"""Bias, penalties and min_tokens at every node of a window, with the drafts on its path as history."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxspec.sampling.warpers import Warpers
from jaxspec.typing import Logits, Rows, Tokens


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class History:
    """Each row's known tokens: the prompt, then the output so far. Entries at and beyond `length` mean nothing."""

    tokens: Int[Array, "B S"]
    length: Rows
    prompt_length: Rows


def penalise(
    logits: Logits,
    warpers: Warpers,
    history: History,
    window: Tokens,
    ancestors: Bool[Array | np.ndarray, "*B T T"],
    stop_ids: Int[Array, "B E"],
    vocab_size: int,
) -> Float[Array, "B T V"]:
    """Logits after bias, repetition, presence and frequency penalty and min_tokens, in this order; float32.

    Node t is judged as plain decoding would judge it after the drafts on its path. The values of a row with everything
    off pass unchanged, bit for bit, and while no row uses anything nothing is computed.

    Args:
        logits: the target's, [B, T, V]; node t judges what follows window token t.
        warpers: every row's settings; traced.
        history: known tokens; the last of them is `window[:, 0]`.
        window: [B, T] the last known token, then the drafts.
        ancestors: [T, T] for all rows or [B, T, T]: node j is an ancestor of node t, or t itself, at [..., t, j].
        stop_ids: [B, E] ids that min_tokens holds back, -1 where unused.
        vocab_size: true vocabulary, static; ids at or beyond it get -inf always.
    """
    logits = logits.astype(jnp.float32)
    if vocab_size < logits.shape[-1]:
        logits = logits.at[:, :, vocab_size:].set(-jnp.inf)
    ancestors = jnp.broadcast_to(ancestors, (logits.shape[0], *ancestors.shape[-2:]))
    penalised = jax.vmap(_penalise_row)
    output = history.length - history.prompt_length
    return lax.cond(
        _any_in_use(warpers, output),
        lambda: penalised(logits, warpers, history, window, ancestors, stop_ids),
        lambda: logits,
    )


def _any_in_use(warpers: Warpers, output: Rows) -> Bool[Array, ""]:
    return (
        jnp.any(warpers.bias_ids >= 0)
        | jnp.any(warpers.repetition_penalty != 1)
        | jnp.any((warpers.presence_penalty != 0) | (warpers.frequency_penalty != 0))
        | jnp.any(output < warpers.min_tokens)
    )


def _penalise_row(
    logits: Float[Array, "T V"],
    warpers: Warpers,
    history: History,
    window: Int[Array, "T"],
    ancestors: Bool[Array, "T T"],
    stop_ids: Int[Array, "E"],
) -> Float[Array, "T V"]:
    vocab = logits.shape[-1]
    # Vectors over the vocabulary are scattered, never matrices: TPUs would lay those out with the window innermost.
    bias = jnp.zeros(vocab, jnp.float32).at[_slots(warpers.bias_ids, vocab)].add(warpers.bias_values, mode="drop")
    values = _repeat_penalties(logits + bias[None, :], warpers, history, window, ancestors)
    # Node t judges the output token that stands depth(t) after the last known one; depth counts the ancestors.
    output = history.length - history.prompt_length + jnp.sum(ancestors, -1, dtype=jnp.int32) - 1
    stops = jnp.zeros(vocab, bool).at[_slots(stop_ids, vocab)].set(True, mode="drop")
    return jnp.where(stops[None, :] & (output < warpers.min_tokens)[:, None], -jnp.inf, values)


def _slots(ids: Int[Array, "..."], vocab: int) -> Int[Array, "..."]:
    """Ids to scatter at: those that are no token become V, which mode="drop" drops (a -1 would mean the last one)."""
    return jnp.where(ids >= 0, ids, vocab)


def _repeat_penalties(
    values: Float[Array, "T V"],
    warpers: Warpers,
    history: History,
    window: Int[Array, "T"],
    ancestors: Bool[Array, "T T"],
) -> Float[Array, "T V"]:
    """Penalise by the committed history, and at each node by the drafts before it on its path."""
    vocab = values.shape[-1]
    known = jnp.arange(history.tokens.shape[0]) < history.length
    output = known & (jnp.arange(history.tokens.shape[0]) >= history.prompt_length)
    slots = _slots(history.tokens, vocab)
    seen = jnp.zeros(vocab, bool).at[slots].max(known, mode="drop")
    count = jnp.zeros(vocab, jnp.float32).at[slots].add(output.astype(jnp.float32), mode="drop")

    # on_path[t, j]: draft j (window[0] is history already) comes before what node t judges.
    #   chain of 2 drafts:  node 0 [. . .]   node 1 [. x .]   node 2 [. x x]
    on_path = ancestors & (jnp.arange(window.shape[0]) > 0)[None, :]
    each = window[:, None] == lax.broadcasted_iota(jnp.int32, values.shape, 1)
    drafted = on_path.astype(jnp.float32) @ each.astype(jnp.float32)  # [t, v] how often v was drafted before node t
    return _penalty(values, warpers, seen[None, :] | (drafted > 0), count[None, :] + drafted)


def _penalty(
    values: Float[Array, "T N"], warpers: Warpers, seen: Bool[Array, "..."], count: Float[Array, "..."]
) -> Float[Array, "T N"]:
    factor = warpers.repetition_penalty
    repeated = jnp.where(values < 0, values * factor, values / factor)
    values = jnp.where(seen, repeated, values)
    present = jnp.where(count > 0, warpers.presence_penalty, 0.0)
    return values - (present + warpers.frequency_penalty * count)
