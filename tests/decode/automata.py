"""A language model that is a table, so that its law is known exactly and compiles in a moment.

The logits after a token depend on that token and on a state in 0..M-1: (sum of all tokens so far + position) mod M.
A cache that misses, repeats or misplaces one token is in the wrong state, so it cannot stay unnoticed.
"""

import functools
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.models import LanguageModel, Output

STATES = 3


class Config(NamedTuple):
    """What the engine reads of a config."""

    vocab_size: int
    max_positions: int = 4096


class Memory(NamedTuple):
    """Sum and number of the committed tokens of each row."""

    total: jax.Array
    length: jax.Array


@functools.lru_cache(maxsize=64)
def automaton(vocab_size: int, max_positions: int = 4096) -> LanguageModel:
    """The model; its parameters are {"table": [V, M, V] float32}."""

    def init_cache(rows: int, capacity: int, *, headroom: int, dtype=jnp.float32) -> Memory:
        del capacity, headroom, dtype
        return Memory(jnp.zeros(rows, jnp.int32), jnp.zeros(rows, jnp.int32))

    def forward(params, tokens, positions, mask, cache, carried=None, *, layers=None, hidden=None, logits=True):
        del layers, hidden
        seen = tokens if carried is None else jnp.concatenate([carried, tokens], axis=1)
        total = cache.total[:, None] + jnp.sum(jnp.where(mask, seen[:, None, :], 0), axis=-1)
        state = jnp.mod(total + positions, STATES)
        values = params["table"][jnp.minimum(tokens, vocab_size - 1), state] if logits else None
        return Output(values, jnp.zeros((*tokens.shape, 1)), tokens)

    def commit(cache: Memory, window, path, count) -> Memory:
        taken = window if path is None else jnp.take_along_axis(window, path, axis=1)
        kept = jnp.arange(taken.shape[1], dtype=jnp.int32)[None, :] < count[:, None]
        return Memory(cache.total + jnp.sum(jnp.where(kept, taken, 0), axis=1), cache.length + count)

    return LanguageModel(Config(vocab_size, max_positions), init_cache, forward, commit)


def random_table(vocab: int, seed: int, *, padded: int = 0, scale: float = 1.5) -> np.ndarray:
    """Logits [V, M, V]; columns of the padding are so large that an engine that forgets about them picks them."""
    table = np.random.default_rng(seed).normal(size=(vocab + padded, STATES, vocab + padded)) * scale
    table[:, :, vocab:] = 8.0
    return table.astype(np.float32)


def related_table(table: np.ndarray, vocab: int, seed: int, *, padded: int = 0, noise: float = 0.7) -> np.ndarray:
    """A draft's table: near the target's on the true vocabulary, padded to a size of its own."""
    fresh = random_table(vocab, seed, padded=padded)
    own = np.random.default_rng(seed).normal(size=(vocab, STATES, vocab)) * noise
    fresh[:vocab, :, :vocab] = table[:vocab, :, :vocab] + own
    return fresh.astype(np.float32)


def logits_after(table: np.ndarray, tokens: list[int]) -> np.ndarray:
    """Logits of the token that follows."""
    return table[tokens[-1], (sum(tokens) + len(tokens) - 1) % STATES].astype(np.float64)


ORDER = ("temperature", "top_k", "top_p", "min_p")


def law_after(
    table: np.ndarray,
    prompt: list[int],
    output: list[int],
    vocab: int,
    *,
    order: tuple[str, ...] = ORDER,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    bias: dict[int, float] | None = None,
    min_tokens: int = 0,
    stop_ids: tuple[int, ...] = (),
) -> np.ndarray:
    """Law of the next token by the warpers' definitions, in float64 and with a sort."""
    values = logits_after(table, prompt + output)[:vocab]
    for token, value in (bias or {}).items():
        values[token] += value
    for token in set(prompt + output):
        values[token] *= repetition_penalty if values[token] < 0 else 1 / repetition_penalty
    for token in set(output):
        values[token] -= presence_penalty + frequency_penalty * output.count(token)
    if len(output) < min_tokens:
        values[list(stop_ids)] = -np.inf
    for name in order:
        if name == "temperature":
            values = values / temperature
        if name == "top_k" and top_k:
            values = np.where(values >= np.sort(values)[-min(top_k, vocab)], values, -np.inf)
        if name == "top_p":
            down = np.argsort(-values)
            p = softmax(values)[down]
            values[down[np.cumsum(p) - p >= top_p]] = -np.inf
        if name == "min_p":
            values = np.where(softmax(values) >= min_p * softmax(values).max(), values, -np.inf)
    return softmax(values)


def softmax(values: np.ndarray) -> np.ndarray:
    weights = np.exp(values - values.max())
    return weights / weights.sum()


def joint_law(table: np.ndarray, prompt: list[int], vocab: int, length: int, **settings) -> np.ndarray:
    """Law of the first `length` tokens of the output, flat, the first token most significant."""
    law = np.ones(1)
    for depth in range(length):
        prefixes = itertools.product(range(vocab), repeat=depth)
        following = [law_after(table, prompt, list(prefix), vocab, **settings) for prefix in prefixes]
        law = (law[:, None] * np.stack(following)).ravel()
    return law


def codes(outputs: np.ndarray, vocab: int) -> np.ndarray:
    """Index into `joint_law` of each output [N, length]."""
    return outputs @ vocab ** np.arange(outputs.shape[1] - 1, -1, -1)


def chi_square(outputs: np.ndarray, law: np.ndarray, vocab: int) -> float:
    """p-value of outputs [N, length] under their joint law; 0 where one came that cannot come.

    Cells that expect fewer than 5 are counted together.
    """
    import scipy.stats

    if (outputs >= vocab).any() or (outputs < 0).any():
        return 0.0
    counts = np.bincount(codes(outputs, vocab), minlength=law.size).astype(np.float64)
    if counts[law == 0].any():
        return 0.0
    expected = law * counts.sum()
    small = expected < 5
    counts, expected = (np.append(values[~small], values[small].sum()) for values in (counts, expected))
    kept = expected > 0
    if kept.sum() < 2:
        return 1.0
    assert math.isclose(expected.sum(), counts.sum(), rel_tol=1e-9)
    return float(scipy.stats.chisquare(counts[kept], expected[kept]).pvalue)
