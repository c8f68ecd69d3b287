"""Grouped-query attention of a window over (committed slots, carried tokens, the window itself)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from jaxspec.cache import LayerCache
from jaxspec.models.config import ModelConfig
from jaxspec.models.layers import Linear, RMSNorm, rotate, softcap

NEGATIVE = -0.7 * float(jnp.finfo(jnp.float32).max)  # finite, so that a row that sees nothing yields no NaN


class Attention(nnx.Module):
    """Projections, rotary embedding and the two-part softmax; returns the window's keys and values, writes nothing."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs, dtype: DTypeLike, in_size: int | None = None):
        c, q_size, kv_size = config, config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        size = c.hidden_size if in_size is None else in_size
        if c.fused:
            self.qkv_proj = Linear(size, q_size + 2 * kv_size, bias=c.qkv_bias, rngs=rngs, dtype=dtype)
        else:
            self.q_proj = Linear(size, q_size, bias=c.qkv_bias, rngs=rngs, dtype=dtype)
            self.k_proj = Linear(size, kv_size, bias=c.qkv_bias, rngs=rngs, dtype=dtype)
            self.v_proj = Linear(size, kv_size, bias=c.qkv_bias, rngs=rngs, dtype=dtype)
        self.o_proj = Linear(q_size, c.hidden_size, bias=c.out_bias, rngs=rngs, dtype=dtype)
        self.q_norm = RMSNorm(c.head_dim, c, dtype=dtype) if c.qk_norm else None
        self.k_norm = RMSNorm(c.head_dim, c, dtype=dtype) if c.qk_norm else None
        self.config = c

    def __call__(
        self,
        x: Float[Array, "I B T"],
        rope: tuple[jax.Array, jax.Array],
        past: LayerCache,
        past_mask: Bool[Array, "B T S"],
        carried: tuple[jax.Array, jax.Array] | None,
        mask: Bool[Array, "B T CT"],
    ) -> tuple[Float[Array, "D B T"], Float[Array, "B K T H"], Float[Array, "B K T H"]]:
        c = self.config
        _, rows, width = x.shape
        q, k, v = self.project(x, rope)
        keys, values = k, v
        if carried is not None:
            keys = jnp.concatenate([carried[0].astype(k.dtype), k], axis=2)
            values = jnp.concatenate([carried[1].astype(v.dtype), v], axis=2)
        mixed = attend(q, past, past_mask, keys, values, mask, scale=self.scale, cap=c.attention_softcap)
        return self.o_proj(mixed.reshape(-1, rows, width).astype(x.dtype)), k, v

    def project(self, x: Float[Array, "I B T"], rope: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
        """Queries [K, G, H, B, T], keys and values [B, K, T, H]; rotated."""
        c = self.config
        _, rows, width = x.shape
        q, k, v = (part.reshape(-1, c.head_dim, rows, width) for part in self._project(x))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q, axis=1), self.k_norm(k, axis=1)
        q, k = rotate(q, *rope), rotate(k, *rope)
        q = q.reshape(c.num_kv_heads, -1, c.head_dim, rows, width)
        return q, k.transpose(2, 0, 3, 1), v.transpose(2, 0, 3, 1)

    def _project(self, x: Float[Array, "I B T"]) -> tuple[jax.Array, jax.Array, jax.Array]:
        c = self.config
        if not c.fused:
            return self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q_size, kv_size = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        q, k, v = jnp.split(self.qkv_proj(x), (q_size, q_size + kv_size))
        return q, k, v

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        scale = self.config.query_scale
        return self.config.head_dim**-0.5 if scale is None else scale


def attend(
    q: Float[Array, "K G H B T"],
    past: LayerCache,
    past_mask: Bool[Array, "B T S"],
    keys: Float[Array, "B K CT H"],
    values: Float[Array, "B K CT H"],
    mask: Bool[Array, "B T CT"],
    *,
    scale: float,
    cap: float | None,
) -> Float[Array, "K G H B T"]:
    """Softmax attention over two key sets that stay where they are: no concatenation with the cache.

    softmax over [past, window] = (e_past V_past + e_window V_window) / (sum e_past + sum e_window),
    with e = exp(score - max).
    """
    kv_heads, groups, size, rows, width = q.shape
    # [B, K, G T, H]: the caches stay as they lie, batch axes first; only what is as small as the window is turned.
    queries = q.transpose(3, 0, 1, 4, 2).reshape(rows, kv_heads, groups * width, size)

    def scores(queries: jax.Array, k: jax.Array, seen: jax.Array) -> jax.Array:
        s = _product(queries, k.astype(q.dtype), 3).reshape(rows, kv_heads, groups, width, -1)
        return jnp.where(seen[:, None, None], softcap(s * scale, cap), NEGATIVE)

    def mix(weights: jax.Array, v: jax.Array) -> jax.Array:
        return _product(weights.reshape(rows, kv_heads, groups * width, -1).astype(v.dtype), v, 2)

    # Behind a barrier, or XLA merges the two products of one operand on GPUs: it would join the cache's keys and these.
    apart = jax.lax.optimization_barrier(queries)
    old, new = scores(queries, past.k, past_mask), scores(apart, keys, mask)
    top = jnp.maximum(old.max(-1, keepdims=True), new.max(-1, keepdims=True))
    old, new = jnp.exp(old - top), jnp.exp(new - top)
    total = old.sum(-1) + new.sum(-1)  # [B, K, G, T]
    mixed = mix(old, past.v.astype(values.dtype)) + mix(new, values)
    mixed = mixed.reshape(rows, kv_heads, groups, width, size) / total[..., None]
    return mixed.transpose(1, 2, 4, 0, 3)


def _product(left: Float[Array, "B K M X"], right: jax.Array, axis: int) -> Float[Array, "B K M Y"]:
    """left times right over `axis` of right (3: its transpose), a matrix product for each row and head; in float32."""
    return jax.lax.dot_general(
        left,
        right,
        (((3,), (axis,)), ((0, 1), (0, 1))),
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
