"""What training minimises: next-token cross-entropy, and a draft's divergence from its target. In nats a token."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from jaxspec.models import LanguageModel
from jaxspec.typing import Logits, Params, PyTree, Tokens

Loss = Callable[[Params, jax.Array, PyTree], jax.Array]
"""loss(params, tokens [B, T+1], context) -> mean over the batch; `context` is not trained, a target for example."""


def next_token(model: LanguageModel, *, exits: tuple[tuple[int, float], ...] = ()) -> Loss:
    """Cross-entropy of every next token; plus, for each (layers, weight), the same after the first `layers` layers.

    The second part makes a target draft well by early exit (Elhoushi et al. 2024, "LayerSkip"). Context: ().
    """

    def loss(params: Params, tokens: Tokens, context: PyTree) -> Float[Array, ""]:
        del context
        depths = tuple(layers for layers, _ in exits)
        *early, last = _logits(model, params, tokens[:, :-1], depths)
        total = _cross_entropy(last, tokens[:, 1:])
        for (_, weight), logits in zip(exits, early, strict=True):
            total += weight * _cross_entropy(logits, tokens[:, 1:])
        return total

    return loss


def divergence(draft: LanguageModel, target: LanguageModel) -> Loss:
    """KL(p || q) of a draft's law q from the target's law p on the same text. Context: the target's parameters.

    Source: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network".
    """

    def loss(params: Params, tokens: Tokens, context: Params) -> Float[Array, ""]:
        read = tokens[:, :-1]
        log_p = jax.nn.log_softmax(jax.lax.stop_gradient(_logits(target, context, read)[0]))
        log_q = jax.nn.log_softmax(_logits(draft, params, read)[0])
        return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1).mean()

    return loss


def mean_over(loss: Loss, params: Params, batches: Iterable[np.ndarray], *, context: Any = ()) -> float:
    """The mean of a loss over batches of one shape."""
    measure = jax.jit(loss)
    return float(np.mean([measure(params, jnp.asarray(batch), context) for batch in batches]))


def _logits(
    model: LanguageModel, params: Params, tokens: Int[Array, "B T"], exits: tuple[int, ...] = ()
) -> list[Logits]:
    """Logits of a text read from its start, after the first `exits` layers in rising order, and after all."""
    rows, width = tokens.shape
    cache = model.init_cache(rows, 1, headroom=1)  # holds nothing: one slot, since a softmax over none is undefined
    positions = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), (rows, width))
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((width, width), bool)), (rows, width, width))
    if not exits:
        out = model.forward(params, tokens, positions, mask, cache)
        assert out.logits is not None
        return [out.logits]
    found, hidden, start = [], None, 0
    for stop in (*exits, model.config.num_layers):
        out = model.forward(params, tokens, positions, mask, cache, layers=(start, stop), hidden=hidden)
        found.append(out.logits)
        hidden, start = out.hidden, stop
    return found


def _cross_entropy(logits: Logits, tokens: Tokens) -> Float[Array, ""]:
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()
