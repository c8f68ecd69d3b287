"""What a run's log says that a source drafted, and what a model says of the same texts in one pass of its own."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.models import LanguageModel
from tests.decode.engines import Run


class Drafted(NamedTuple):
    """One proposal: of a row in a round."""

    row: int
    round: int
    prefix: list[int]  # known tokens
    drafts: list[int]


def proposals(run: Run, source: int) -> list[Drafted]:
    """Every proposal of a source, in a run of fewer rounds than the log holds."""
    log, state, out = run.log, run.state, []
    assert run.rounds <= len(log.source)
    lengths = state.request.prompt_length[None, :] + np.cumsum(log.emitted, 0) - log.emitted
    for at, row in zip(*np.nonzero((log.source == source) & (log.count > 0)), strict=True):
        prefix = state.tokens[row, : lengths[at, row]].tolist()
        out.append(Drafted(int(row), int(at), prefix, log.tokens[at, row, : log.count[at, row]].tolist()))
    return out


def own_logits(model: LanguageModel, params, drafted: list[Drafted], *, layers=None) -> list[np.ndarray]:
    """The model's logits for each draft of each proposal [drafts, V], from passes over empty caches."""
    longest = max(len(each.prefix) + len(each.drafts) for each in drafted)
    texts = np.zeros((len(drafted), 96 * -(-longest // 96)), np.int32)
    for index, (_, _, prefix, drafts) in enumerate(drafted):
        text = prefix + drafts
        texts[index, : len(text)] = text
    logits = np.concatenate([np.asarray(_whole(model, params, part, layers)) for part in _parts(texts)])
    return [
        logits[index, len(prefix) - 1 : len(prefix) - 1 + len(drafts)]
        for index, (_, _, prefix, drafts) in enumerate(drafted)
    ]


def _parts(texts: np.ndarray, size: int = 32) -> list[np.ndarray]:
    padded = np.concatenate([texts, np.zeros((-len(texts) % size, texts.shape[1]), np.int32)])
    return np.split(padded, len(padded) // size)


@functools.partial(jax.jit, static_argnums=(0, 3))
def _whole(model: LanguageModel, params, tokens: jax.Array, layers) -> jax.Array:
    return empty_pass(model, params, tokens, layers).logits


def empty_pass(model: LanguageModel, params, tokens: jax.Array, layers=None):
    """One pass over texts [B, T] and an empty cache."""
    rows, length = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32)[None], (rows, length))
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool))[None], (rows, length, length))
    cache = model.init_cache(rows, 1, headroom=1, dtype=jnp.float32)
    return model.forward(params, jnp.asarray(tokens), positions, mask, cache, layers=layers)
