"""Tiny models of every family and every rotary scaling, random parameters, and a driver that feeds them in windows."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.models import LanguageModel, ModelConfig, config_from_hf, language_model, parameter_shapes

LENGTH = 44
WINDOW = 8
HEADROOM = 8  # ring of 16 slots in a cache of 64: the text of 44 tokens wraps it twice
CAPACITY = 64
TRAINED = 16  # trained context of the scalings that depend on the length

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
LONGROPE = {"type": "longrope", "short_factor": [1.0, 1.3, 2.0], "long_factor": [1.1, 4.0, 9.0]}
SLIDING, FULL = "sliding_attention", "full_attention"


def llama(**fields: object) -> dict:
    return {"model_type": "llama", **SIZES, **fields}


def wide(**fields: object) -> dict:
    """Heads of 16 frequencies, of 6 to 470 tokens a turn: the scalings treat some of them one way and some another."""
    return llama(head_dim=32, rope_theta=100.0, **fields)


FAMILIES = {
    "llama2": llama(num_key_value_heads=4),
    "llama3": wide(rope_scaling=LLAMA3),
    "smollm2": llama(tie_word_embeddings=True, rope_theta=100000, rope_interleaved=False, rms_norm_eps=1e-5),
    "llama-bias": llama(attention_bias=True, mlp_bias=True, hidden_act="gelu"),
    "mistral": {"model_type": "mistral", **SIZES, "sliding_window": WINDOW, "head_dim": 16},
    "mistral-full": {"model_type": "mistral", **SIZES, "sliding_window": None},
    "qwen2": {"model_type": "qwen2", **SIZES, "tie_word_embeddings": True, "sliding_window": 4},
    "qwen2-sliding": {
        "model_type": "qwen2",
        **SIZES,
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": 1,
    },
    "qwen3": {
        "model_type": "qwen3",
        **SIZES,
        "head_dim": 16,
        "attention_bias": True,
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "layer_types": [SLIDING, FULL],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
    "gemma2": {
        "model_type": "gemma2",
        **SIZES,
        "head_dim": 8,
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 11,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 5.0,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        **SIZES,
        "head_dim": 8,
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 16,
        "sliding_window_pattern": 2,
        "rope_local_base_freq": 100.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "phi3": {"model_type": "phi3", **SIZES, "sliding_window": WINDOW, "pad_token_id": 0},
}
"""One config.json a family, and the variants that take other paths through the decoder."""

SCALINGS = {
    "linear": llama(rope_scaling={"type": "linear", "factor": 3.0}),
    "yarn": wide(rope_scaling=YARN),
    "yarn-mscale": wide(rope_scaling={**YARN, "mscale": 0.7, "mscale_all_dim": 1.1, "truncate": False}),
    "yarn-betas": llama(head_dim=32, rope_parameters={**YARN, "beta_fast": 4.0, "beta_slow": 0.5, "rope_theta": 50.0}),
    "yarn-attention": wide(rope_scaling={**YARN, "attention_factor": 0.8}),
    "qwen2-yarn": {"model_type": "qwen2", **SIZES, "rope_scaling": {**YARN, "factor": 2.0}},
    "gemma3-new": {
        **FAMILIES["gemma3"],
        "rope_scaling": None,
        "rope_local_base_freq": None,
        "rope_parameters": {
            FULL: {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5},
            SLIDING: {"rope_type": "default", "rope_theta": 500.0},
        },
    },
}
"""Scalings that do not depend on the length, in the layouts of transformers before and since 5."""

LENGTH_SCALINGS = {
    "dynamic": llama(rope_scaling={"type": "dynamic", "factor": 4.0}, max_position_embeddings=TRAINED),
    "longrope": {
        "model_type": "phi3",
        **SIZES,
        "pad_token_id": 0,
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": TRAINED,
        "rope_scaling": LONGROPE,
    },
}
"""Scalings whose frequencies depend on the length of the sequence."""


@functools.cache
def tiny(name: str) -> ModelConfig:
    """The config of an entry of the tables above."""
    return config_from_hf((FAMILIES | SCALINGS | LENGTH_SCALINGS)[name])


def random_params(config: ModelConfig, seed: int = 0, dtype: jnp.dtype = jnp.float32) -> dict[str, jax.Array]:
    """Parameters that leave no part of the decoder without effect: biases and norms are random too."""
    rng = np.random.default_rng(seed)

    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name.endswith("norm.weight"):
            return 1 - config.norm_offset + 0.3 * rng.standard_normal(shape)
        if name == "embed_tokens.weight":
            return 0.5 * rng.standard_normal(shape)
        return rng.standard_normal(shape) * (0.3 if len(shape) == 1 else 1.3 * shape[1] ** -0.5)

    return {name: jnp.asarray(draw(name, s.shape), dtype) for name, s in parameter_shapes(config).items()}


def random_tokens(config: ModelConfig, rows: int = 2, length: int = LENGTH, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, config.vocab_size, (rows, length)).astype(np.int32)


def empty_cache(model: LanguageModel, rows: int, *, headroom: int = HEADROOM, dtype: jnp.dtype = jnp.float32):
    return model.init_cache(rows, CAPACITY, headroom=headroom, dtype=dtype)


def chain_mask(rows: int, width: int, carried: int = 0) -> jax.Array:
    """Every token sees the carried ones, itself and those before it in the window."""
    own = jnp.tril(jnp.ones((width, width), bool))
    return jnp.broadcast_to(
        jnp.concatenate([jnp.ones((width, carried), bool), own], axis=1), (rows, width, carried + width)
    )


@functools.partial(jax.jit, static_argnums=0)
def window_pass(model: LanguageModel, params, tokens, cache, count):
    """One window at each row's length, of which `count` tokens are committed: (logits, cache)."""
    rows, width = tokens.shape
    positions = cache.length[:, None] + jnp.arange(width, dtype=jnp.int32)[None]
    out = model.forward(params, tokens, positions, chain_mask(rows, width), cache)
    return out.logits, model.commit(cache, out.window, None, count)


def feed(model: LanguageModel, params, tokens: np.ndarray, widths: Sequence[int], cache=None) -> np.ndarray:
    """Logits of every token, fed in windows of the given widths, repeated until the text ends."""
    rows, length = tokens.shape
    cache = empty_cache(model, rows) if cache is None else cache
    logits, at, turn = [], 0, 0
    while at < length:
        width = widths[turn % len(widths)]
        width = width if at + width <= length else 1
        out, cache = window_pass(model, params, tokens[:, at : at + width], cache, jnp.full(rows, width, jnp.int32))
        logits.append(np.asarray(out))
        at, turn = at + width, turn + 1
    return np.concatenate(logits, axis=1)


@functools.partial(jax.jit, static_argnums=0)
def whole_pass(model: LanguageModel, params, tokens) -> jax.Array:
    """Logits of every token in one pass over an empty cache."""
    rows, length = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (rows, length))
    dtype = params["embed_tokens.weight"].dtype
    cache = model.init_cache(rows, 1, headroom=1, dtype=dtype)
    return model.forward(params, tokens, positions, chain_mask(rows, length), cache).logits


def model_of(name: str) -> tuple[LanguageModel, dict[str, jax.Array]]:
    config = tiny(name)
    return language_model(config), random_params(config)


@functools.partial(jax.jit, static_argnums=0)
def carried_pass(model: LanguageModel, params, first, second, cache) -> jax.Array:
    """Logits of two windows, the second attending to the uncommitted first."""
    rows, carried, width = *first.shape, second.shape[1]
    positions = cache.length[:, None] + jnp.arange(carried + width, dtype=jnp.int32)[None]
    early = model.forward(params, first, positions[:, :carried], chain_mask(rows, carried), cache)
    mask = chain_mask(rows, width, carried)
    late = model.forward(params, second, positions[:, carried:], mask, cache, early.window)
    return jnp.concatenate([early.logits, late.logits], axis=1)


def feed_carried(
    model: LanguageModel, params, tokens: np.ndarray, *, committed: int, widths: tuple[int, int]
) -> np.ndarray:
    """Logits of the two windows that follow the committed tokens."""
    cache, at = empty_cache(model, tokens.shape[0]), 0
    while at < committed:
        count = jnp.full(tokens.shape[0], min(HEADROOM, committed - at), jnp.int32)
        _, cache = window_pass(model, params, tokens[:, at : at + HEADROOM], cache, count)
        at += int(count[0])
    middle = committed + widths[0]
    return carried_pass(model, params, tokens[:, committed:middle], tokens[:, middle : middle + widths[1]], cache)


def feed_with_rejections(
    model: LanguageModel, params, tokens: np.ndarray, cache, *, seed: int = 2, commit_all: bool = False
) -> np.ndarray:
    """Logits of every token, in windows of which each row accepts its own number of tokens, from none to all.

    What a row does not accept are wrong drafts: random tokens that the next window must not see.

    Args:
        commit_all: a broken engine that keeps the rejected ones too.
    """
    rng = np.random.default_rng(seed)
    rows, length = tokens.shape
    logits = np.full((*tokens.shape, model.config.vocab_size), np.nan, np.float32)
    at = np.zeros(rows, int)
    while (at < length).any():
        count = np.minimum(rng.integers(0, HEADROOM + 1, rows), length - at)
        window = rng.integers(0, model.config.vocab_size, (rows, HEADROOM)).astype(np.int32)
        for row in range(rows):
            window[row, : count[row]] = tokens[row, at[row] : at[row] + count[row]]
        kept = np.where(count > 0, HEADROOM, 0) if commit_all else count
        out, cache = window_pass(model, params, window, cache, jnp.asarray(kept, jnp.int32))
        for row in range(rows):
            logits[row, at[row] : at[row] + count[row]] = np.asarray(out)[row, : count[row]]
        at += count
    return logits
