"""One decoder-only transformer in Flax NNX; the families differ by the flags of their config."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jaxspec.cache import Cache, LayerCache, Window, visible
from jaxspec.models.attention import Attention
from jaxspec.models.config import ModelConfig
from jaxspec.models.layers import Linear, RMSNorm, activation, linear, rope_tables, softcap
from jaxspec.models.rope import frequencies
from jaxspec.typing import PyTree


class FeedForward(nnx.Module):
    """Gated feed-forward: down(act(gate x) * up x)."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs, dtype: DTypeLike):
        c = config
        self.fused = c.fused
        if c.fused:
            self.gate_up_proj = Linear(c.hidden_size, 2 * c.intermediate_size, bias=c.mlp_bias, rngs=rngs, dtype=dtype)
        else:
            self.gate_proj = Linear(c.hidden_size, c.intermediate_size, bias=c.mlp_bias, rngs=rngs, dtype=dtype)
            self.up_proj = Linear(c.hidden_size, c.intermediate_size, bias=c.mlp_bias, rngs=rngs, dtype=dtype)
        self.down_proj = Linear(c.intermediate_size, c.hidden_size, bias=c.mlp_bias, rngs=rngs, dtype=dtype)
        self.act = c.activation

    def __call__(self, x: Float[Array, "D B T"]) -> Float[Array, "D B T"]:
        gate, up = jnp.split(self.gate_up_proj(x), 2) if self.fused else (self.gate_proj(x), self.up_proj(x))
        return self.down_proj(activation(self.act, gate) * up)


class Layer(nnx.Module):
    """Attention and feed-forward, each behind a norm (and before one, where the family says so)."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs, dtype: DTypeLike):
        size = config.hidden_size
        self.input_layernorm = RMSNorm(size, config, dtype=dtype)
        self.self_attn = Attention(config, rngs=rngs, dtype=dtype)
        self.post_attention_layernorm = RMSNorm(size, config, dtype=dtype)
        self.mlp = FeedForward(config, rngs=rngs, dtype=dtype)
        self.post_norms = config.post_norms
        if config.post_norms:
            self.pre_feedforward_layernorm = RMSNorm(size, config, dtype=dtype)
            self.post_feedforward_layernorm = RMSNorm(size, config, dtype=dtype)

    def __call__(
        self,
        x: Float[Array, "D B T"],
        rope: tuple[jax.Array, jax.Array],
        past: LayerCache,
        past_mask: Bool[Array, "B T S"],
        carried: tuple[jax.Array, jax.Array] | None,
        mask: Bool[Array, "B T CT"],
    ) -> tuple[Float[Array, "D B T"], Float[Array, "B K T H"], Float[Array, "B K T H"]]:
        mixed, k, v = self.self_attn(self.input_layernorm(x), rope, past, past_mask, carried, mask)
        if self.post_norms:
            x = x + self.post_attention_layernorm(mixed)
            return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x))), k, v
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), k, v


class Embedding(nnx.Module):
    """Token vectors [V, D]."""

    def __init__(self, rows: int, size: int, *, rngs: nnx.Rngs, dtype: DTypeLike):
        self.weight = nnx.Param(jax.random.normal(rngs.params(), (rows, size), dtype) * jnp.asarray(0.02, dtype))


class Decoder(nnx.Module):
    """Embedding, layers, final norm, output matrix."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs, dtype: DTypeLike = jnp.float32):
        c = config
        self.config = c
        self.embed_tokens = Embedding(c.vocab_size, c.hidden_size, rngs=rngs, dtype=dtype)
        self.layers = nnx.List([Layer(c, rngs=rngs, dtype=dtype) for _ in range(c.num_layers)])
        self.norm = RMSNorm(c.hidden_size, c, dtype=dtype)
        if not c.tie_embeddings:
            self.lm_head = Linear(c.hidden_size, c.vocab_size, bias=False, rngs=rngs, dtype=dtype)

    def embed(self, tokens: Int[Array, "B T"]) -> Float[Array, "D B T"]:
        x = jnp.take(self.embed_tokens.weight[...], tokens, axis=0, mode="clip").transpose(2, 0, 1)
        return x if self.config.embed_scale == 1.0 else x * jnp.asarray(self.config.embed_scale, x.dtype)

    def head(self, x: Float[Array, "D B T"]) -> Float[Array, "B T V"]:
        """Final norm and output matrix, logits in float32."""
        weight = self.embed_tokens.weight[...] if self.config.tie_embeddings else self.lm_head.weight[...]
        logits = linear(weight, self.norm(x)).astype(jnp.float32)
        return softcap(logits, self.config.final_softcap).transpose(1, 2, 0)

    def __call__(
        self,
        x: Float[Array, "D B T"],
        positions: Int[Array, "B T"],
        mask: Bool[Array, "B T CT"],
        cache: Cache,
        carried: Window | None,
        start: int,
        stop: int,
    ) -> tuple[Float[Array, "D B T"], Window]:
        """Layers start..stop-1 on the residual stream; `carried` holds these layers alone."""
        c = self.config
        ropes = {local: rope_tables(positions, *frequencies(c, positions, local=local)) for local in _kinds(c)}
        seen = positions if carried is None else jnp.concatenate([carried.positions, positions], axis=1)
        masks: dict[tuple[int | None, int | None, int], tuple[jax.Array, jax.Array]] = {}
        keys, values = [], []
        for index in range(start, stop):
            past, ring, window = cache.layers[index], cache.rings[index], c.window(index)
            kind = (window, ring, past.k.shape[2])
            if kind not in masks:
                masks[kind] = _masks(cache.length, positions, seen, mask, past, window, ring)
            old = None if carried is None else (carried.k[index - start], carried.v[index - start])
            local = c.rope_local_theta is not None and window is not None
            graph, weights = nnx.split(self.layers[index])
            x, k, v = _run(graph, weights, x, ropes[local], past, masks[kind][0], old, masks[kind][1])
            keys.append(k)
            values.append(v)
        return x, Window(tuple(keys), tuple(values), positions)


@functools.partial(jax.jit, static_argnums=0)
def _run(graph: PyTree, weights: PyTree, *inputs: object) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One layer. Jitted so that layers of one shape are traced once, not once a layer; XLA inlines the calls."""
    return nnx.merge(graph, weights)(*inputs)


def _kinds(config: ModelConfig) -> tuple[bool, ...]:
    return (False,) if config.rope_local_theta is None else (False, True)


def _masks(
    length: jax.Array,
    positions: jax.Array,
    seen: jax.Array,
    mask: jax.Array,
    past: LayerCache,
    window: int | None,
    ring: int | None,
) -> tuple[jax.Array, jax.Array]:
    """Masks over the committed slots [B, T, S] and over carried + own tokens [B, T, C+T] for one kind of layer."""
    old = visible(length, positions, past.k.shape[2], window, ring)
    if window is not None:
        mask = mask & (seen[:, None, :] > positions[:, :, None] - window)
    return old, mask
