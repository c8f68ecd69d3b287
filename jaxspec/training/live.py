"""The target's view of a batch computed in the training step, where none was kept on disk."""

from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.models import LanguageModel
from jaxspec.models.tapped import tapped
from jaxspec.training.draft_data import Batch
from jaxspec.training.draft_loss import DraftLoss
from jaxspec.training.teacher import Law, Part, documents_of, side_by_side
from jaxspec.typing import Params

PREFIX = "target."
"""Before the names of the target's parameters in the context of a loss."""

See = Callable[[Batch, Params], Batch]
"""(batch, context) -> the batch with the target's laws and features."""


def as_kept(batch: Batch, context: Params) -> Batch:
    """A batch that holds all of it already."""
    del context
    return batch


def live(model: LanguageModel, *, taps: tuple[int, ...], vocab_size: int) -> See:
    """Runs the target over each stretch of a batch: whole laws, in the dtype of its parameters.

    A stretch is all that the target sees, where a kept view saw the document from its beginning.

    Args:
        taps: after how many layers the residual stream is wanted. Static.
        vocab_size: true vocabulary. Static.
    """

    def see(batch: Batch, context: Params) -> Batch:
        tokens, positions = jnp.asarray(batch.tokens), jnp.asarray(batch.positions)
        rows, width = tokens.shape
        own = {name.removeprefix(PREFIX): leaf for name, leaf in context.items() if name.startswith(PREFIX)}
        mask = jnp.broadcast_to(jnp.tril(jnp.ones((width, width), bool)), (rows, width, width))
        out, features = tapped(model, own, tokens, positions, mask, model.init_cache(rows, 1, headroom=1), taps=taps)
        log_p = jax.nn.log_softmax(out.logits[..., :vocab_size], axis=-1)
        ids = _likeliest_first(log_p)
        return batch._replace(ids=ids, log_p=jnp.take_along_axis(log_p, ids, axis=-1), features=features)

    return see


def _likeliest_first(log_p: jax.Array) -> jax.Array:
    """All ids, the likeliest changed places with id 0.   likeliest 2 of 4   ->   2 1 0 3"""
    best = jnp.argmax(log_p, axis=-1, keepdims=True).astype(jnp.int32)
    each = jnp.broadcast_to(jnp.arange(log_p.shape[-1], dtype=jnp.int32), log_p.shape)
    swapped = jnp.where(each == best, 0, each)
    return jnp.concatenate([best, swapped[..., 1:]], axis=-1)


def seen_by(see: See, loss: DraftLoss) -> DraftLoss:
    """The loss of batches that `see` completes."""
    return lambda params, batch, context: loss(params, see(batch, context), context)


def for_context(params: Params) -> Params:
    """The target's parameters by their names in a context."""
    return {PREFIX + name: leaf for name, leaf in params.items()}


def text_parts(shards: Sequence[Path], *, vocab_size: int) -> tuple[Part, ...]:
    """The shards' documents without the target's view of them.

    Raises:
        ValueError: a broken shard, ids outside the vocabulary.
    """
    parts = []
    for shard in shards:
        tokens, starts, prompts = side_by_side(documents_of(shard, vocab_size))
        law = Law(np.zeros((len(tokens), 0), np.int32), np.zeros((len(tokens), 0), np.float16))
        parts.append(Part(tokens, starts, prompts, law, {}))
    return tuple(parts)
