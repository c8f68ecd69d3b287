"""A tiny target and a tiny draft of other sizes that agree about half the time, with real caches."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.models import LanguageModel, ModelConfig, language_model, parameter_shapes

VOCAB = 29
"""True vocabulary; target and draft are padded to sizes of their own."""

TARGET = ModelConfig(
    family="llama",
    vocab_size=32,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_positions=512,
)
DRAFT = dataclasses.replace(
    TARGET,
    vocab_size=36,
    hidden_size=16,
    intermediate_size=24,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    max_positions=128,
)


@functools.cache
def model_of(config: ModelConfig, seed: int, wild: float) -> tuple[LanguageModel, dict[str, jax.Array]]:
    """A model that mostly follows one successor of each token, the same for all, the more wildly the less.

    The output matrix has rows for padding ids that win whenever they are not masked.
    """
    rng = np.random.default_rng(seed)
    shapes = parameter_shapes(config)
    params = {name: rng.standard_normal(s.shape) * s.shape[-1] ** -0.5 for name, s in shapes.items()}
    for name in params:
        if name.endswith("norm.weight"):
            params[name] = 1 + 0.2 * rng.standard_normal(params[name].shape)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            params[name] *= wild
    directions = rng.standard_normal((config.vocab_size, config.hidden_size))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    head = 0.4 * rng.standard_normal(directions.shape) * config.hidden_size**-0.5
    head[successors()] += directions[:VOCAB]
    head[VOCAB:] = 0
    params["embed_tokens.weight"] = directions * config.hidden_size**0.5
    params["lm_head.weight"] = head * 4
    return language_model(config), {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}


def successors() -> np.ndarray:
    return np.random.default_rng(7).permutation(VOCAB)


@functools.partial(jax.jit, static_argnums=0)
def whole_pass(model: LanguageModel, params, tokens: jax.Array) -> jax.Array:
    """Logits [B, T, V] of every token in one pass over an empty cache."""
    rows, length = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32)[None], (rows, length))
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool))[None], (rows, length, length))
    cache = model.init_cache(rows, 1, headroom=1, dtype=params["embed_tokens.weight"].dtype)
    return model.forward(params, tokens, positions, mask, cache).logits


def continued(model: LanguageModel, params, prompts: list[list[int]], length: int) -> list[list[int]]:
    """Greedy outputs up to texts of `length` tokens, one pass over the whole text for each token."""
    texts = np.zeros((len(prompts), length), np.int32)
    for row, prompt in enumerate(prompts):
        texts[row, : len(prompt)] = prompt
    for at in range(min(map(len, prompts)), length):
        best = np.argmax(np.asarray(whole_pass(model, params, jnp.asarray(texts)))[:, at - 1, :VOCAB], -1)
        known = np.asarray([at < len(prompt) for prompt in prompts])
        texts[:, at] = np.where(known, texts[:, at], best)
    return [text[len(prompt) :].tolist() for text, prompt in zip(texts, prompts, strict=True)]
