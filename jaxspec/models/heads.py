"""What drafts from the target's own residual streams: Medusa heads, an exit's head, a feature layer.

Each is a Flax NNX module on feature-major activations [D, B, T]; `bind_head` turns it into pure functions of a flat
dict of parameters. All end in the target's space, so that the target's own output matrix (or the rows of it that a
reduced draft vocabulary keeps) makes logits of it.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxspec.models.api import LanguageModel, Output, language_model
from jaxspec.models.attention import Attention
from jaxspec.models.config import ModelConfig
from jaxspec.models.decoder import FeedForward
from jaxspec.models.layers import Linear, RMSNorm, linear_tokens_first, rms_norm, softcap
from jaxspec.models.limits import SIZES, check_integer
from jaxspec.typing import Params

KINDS = ("medusa", "feature", "lm", "exit")

MOST = {"vocab": SIZES["vocab_size"], "layers": SIZES["num_layers"], "heads": 64, "blocks": 64, "rank": 4096}
"""Largest value of each number of a draft's config, above any that makes sense."""


@dataclasses.dataclass(frozen=True)
class DraftConfig:
    """A trained draft of one target. All fields are static: another value is another compiled program.

    Raises:
        ValueError: an unknown kind or layout, or a number out of range.
    """

    kind: str  # medusa | feature | lm | exit
    body: ModelConfig  # sizes, norms and rotary embedding of the draft's own layers; the target's width
    vocab: int  # tokens the draft can say, at most the target's
    layers: int = 1  # lm: its own; exit: layers of the target it reads after
    heads: int = 4  # medusa: depths
    blocks: int = 1  # medusa: residual blocks a head
    rank: int = 128  # exit: of the adapter
    taps: tuple[int, ...] = ()  # feature: layers of the target after which it reads; medusa: all layers, once
    layout: str = "eagle3"  # feature: eagle3 | eagle
    own_output: bool = False  # whether the draft has an output matrix, one a head for medusa; else the target's
    own_embedding: bool = False  # feature: whether it has an embedding; else the target's
    target_size: int | None = None  # feature, eagle3: width of the target where it is not the body's
    fc_bias: bool | None = None  # feature: of the first map; None is as published, in eagle alone
    norm_before_residual: bool = False  # feature, eagle3: the residual stream begins with the normed feature

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"draft kind {self.kind!r} is unknown; choose {', '.join(KINDS)}")
        if self.layout not in ("eagle3", "eagle"):
            raise ValueError(f"feature layout {self.layout!r} is unknown; choose eagle3 or eagle")
        for name, most in MOST.items():
            check_integer(f"draft {name}", getattr(self, name), 1, most)
        if self.vocab > self.body.vocab_size:
            raise ValueError(f"a draft vocabulary of {self.vocab} is larger than the target's {self.body.vocab_size}")
        if tuple(sorted(set(self.taps))) != self.taps or any(tap < 1 for tap in self.taps):
            raise ValueError(f"taps are {self.taps}; give numbers of layers, 1 or more, ascending")
        if self.kind == "feature":
            self._check_feature()

    def _check_feature(self) -> None:
        if not self.taps or (self.layout == "eagle" and len(self.taps) > 1):
            needed = "one tap, the target's number of layers" if self.layout == "eagle" else "one or more"
            raise ValueError(f"taps of a feature head of layout {self.layout} are {self.taps}; give {needed}")
        if self.target_size is None:
            return
        check_integer("target_size", self.target_size, 1, SIZES["hidden_size"])
        if self.layout == "eagle" or not (self.own_output and self.own_embedding):
            raise ValueError(
                f"target_size is {self.target_size}; a draft of another width than its target's has layout eagle3 and "
                "an output matrix and an embedding of its own"
            )

    @property
    def feature_size(self) -> int:
        """Width of the target's residual stream."""
        return self.body.hidden_size if self.target_size is None else self.target_size


def draft_body(target: ModelConfig, layers: int) -> ModelConfig:
    """Layers as the target's: its width, heads, norms and rotary embedding; no output matrix of their own."""
    plain = {"windows": (), "fused": False, "rope_local_theta": None, "tie_embeddings": True}
    return dataclasses.replace(target, num_layers=layers, **plain)


def default_taps(layers: int) -> tuple[int, ...]:
    """A low, a middle and a high layer: 2, two fifths, four fifths.   30 -> 2 12 24"""
    low, middle, high = min(2, layers), round(layers * 0.4), round(layers * 0.8)
    return tuple(sorted({max(1, low), max(1, middle), max(1, high)}))


class Residual(nnx.Module):
    """x + silu(W x + b)."""

    def __init__(self, size: int, *, rngs: nnx.Rngs, dtype: DTypeLike):
        self.linear = Linear(size, size, bias=True, rngs=rngs, dtype=dtype)
        self.linear.weight[...] = jnp.zeros((size, size), dtype)

    def __call__(self, x: Float[Array, "D B T"]) -> Float[Array, "D B T"]:
        return x + jax.nn.silu(self.linear(x))


class MedusaHeads(nnx.Module):
    """Head i guesses the token i + 1 places after the one that the target's hidden state predicts.

    Source: Cai et al. 2024, "Medusa" (arXiv:2401.10774).
    """

    def __init__(self, config: DraftConfig, *, rngs: nnx.Rngs, dtype: DTypeLike = jnp.float32):
        size = config.body.hidden_size
        self.norm = RMSNorm(size, config.body, dtype=dtype)
        self.heads = nnx.List(
            [
                nnx.List([Residual(size, rngs=rngs, dtype=dtype) for _ in range(config.blocks)])
                for _ in range(config.heads)
            ]
        )

    def __call__(self, hidden: Float[Array, "D B T"]) -> list[Float[Array, "D B T"]]:
        """Every head's vector, of which the output matrix makes logits."""
        x = self.norm(hidden)
        found = []
        for blocks in self.heads:
            y = x
            for block in blocks:
                y = block(y)
            found.append(y)
        return found


class ExitHead(nnx.Module):
    """A low-rank correction and a norm of its own after the target's first layers."""

    def __init__(self, config: DraftConfig, *, rngs: nnx.Rngs, dtype: DTypeLike = jnp.float32):
        size = config.body.hidden_size
        self.norm = RMSNorm(size, config.body, dtype=dtype)
        self.input_norm = RMSNorm(size, config.body, dtype=dtype)
        self.down = Linear(size, config.rank, bias=False, rngs=rngs, dtype=dtype)
        self.up = Linear(config.rank, size, bias=False, rngs=rngs, dtype=dtype)
        self.up.weight[...] = jnp.zeros((size, config.rank), dtype)

    def __call__(self, hidden: Float[Array, "D B T"]) -> Float[Array, "D B T"]:
        return self.norm(hidden + self.up(jax.nn.silu(self.down(self.input_norm(hidden)))))


class FeatureLayer(nnx.Module):
    """One decoder layer over (the target's features, or its own last output; the embedding of the token after them).

    eagle3: the taps' features joined and mapped to the width; attention reads [norm(embedding), norm(feature)].
    eagle:  one tap, the target's last normed state; a map of [embedding, feature] is the residual stream.

    Source: Li et al. 2025, "EAGLE-3" (arXiv:2503.01840); Li et al. 2024, "EAGLE" (arXiv:2401.15077).
    """

    def __init__(self, config: DraftConfig, *, rngs: nnx.Rngs, dtype: DTypeLike = jnp.float32):
        c, size = config.body, config.body.hidden_size
        self.eagle3 = config.layout == "eagle3"
        self.normed = config.norm_before_residual
        inputs = len(config.taps) * config.feature_size if self.eagle3 else 2 * size
        bias = not self.eagle3 if config.fc_bias is None else config.fc_bias
        self.fc = Linear(inputs, size, bias=bias, rngs=rngs, dtype=dtype)
        self.self_attn = Attention(c, rngs=rngs, dtype=dtype, in_size=2 * size if self.eagle3 else size)
        self.post_attention_layernorm = RMSNorm(size, c, dtype=dtype)
        self.mlp = FeedForward(c, rngs=rngs, dtype=dtype)
        self.norm = RMSNorm(size, c, dtype=dtype)  # eagle: the target's, of the feature that is read
        if self.eagle3:
            self.hidden_norm = RMSNorm(size, c, dtype=dtype)
            self.input_layernorm = RMSNorm(size, c, dtype=dtype)

    def fuse(self, features: list[Float[Array, "X B T"]]) -> Float[Array, "D B T"]:
        """The target's features as the layer reads them."""
        return self.fc(jnp.concatenate(features)) if self.eagle3 else self.norm(features[0])

    def enter(self, feature: Float[Array, "D B T"], embedded: Float[Array, "D B T"]) -> tuple[jax.Array, jax.Array]:
        """(residual stream, what attention reads)."""
        if self.eagle3:
            normed = self.hidden_norm(feature)
            read = jnp.concatenate([self.input_layernorm(embedded), normed])
            return normed if self.normed else feature, read
        x = self.fc(jnp.concatenate([embedded, feature]))
        return x, x

    def leave(self, x: Float[Array, "D B T"], mixed: Float[Array, "D B T"]) -> Float[Array, "D B T"]:
        """The layer's output, which is the next depth's feature."""
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x))

    def say(self, x: Float[Array, "D B T"]) -> Float[Array, "D B T"]:
        """What the output matrix makes logits of."""
        return self.norm(x) if self.eagle3 else x


MODULES: dict[str, Any] = {"medusa": MedusaHeads, "exit": ExitHead, "feature": FeatureLayer}


@functools.lru_cache(maxsize=64)
def bind_head(config: DraftConfig) -> Callable[[Params], Any]:
    """`module(params)`: the head's NNX module around a flat dict of parameters, inside or outside of jit."""
    graph, state = nnx.split(nnx.eval_shape(lambda: MODULES[config.kind](config, rngs=nnx.Rngs(0))), nnx.Param)
    paths = {".".join(map(str, path)): path for path, _ in nnx.to_flat_state(state)}

    def module(params: Params) -> Any:
        return nnx.merge(graph, nnx.from_flat_state([(path, nnx.Param(params[name])) for name, path in paths.items()]))

    return module


def head_shapes(config: DraftConfig, dtype: DTypeLike = jnp.float32) -> dict[str, jax.ShapeDtypeStruct]:
    """Name, shape and dtype of every parameter of a head, the output matrix apart."""
    abstract = nnx.eval_shape(lambda: MODULES[config.kind](config, rngs=nnx.Rngs(0), dtype=dtype))
    flat = nnx.to_flat_state(nnx.state(abstract, nnx.Param))
    return {".".join(map(str, path)): jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for path, leaf in flat}


def init_head(config: DraftConfig, *, seed: int, dtype: DTypeLike = jnp.float32) -> Params:
    """Fresh parameters of a head, the output matrix apart; it starts as the target's own last steps would."""
    state = nnx.state(MODULES[config.kind](config, rngs=nnx.Rngs(seed), dtype=dtype), nnx.Param)
    return {".".join(map(str, path)): leaf[...] for path, leaf in nnx.to_flat_state(state)}


def output_logits(config: DraftConfig, weight: Float[Array, "Q D"], x: Float[Array, "D B T"]) -> Float[Array, "B T Q"]:
    """Logits in float32 over the draft's vocabulary."""
    return softcap(linear_tokens_first(weight, x), config.body.final_softcap)


def draft_logits(
    config: DraftConfig, own: Params, x: Float[Array, "D B T"], *, head: int | None = None
) -> Float[Array, "B T Q"]:
    """What an attached draft says of `x`, at the temperature that was fitted to its target.

    Args:
        own: from `jaxspec.checkpoint.attach`.
        head: of a Medusa draft with an output matrix a head.
    """
    weight = own["output.weight" if head is None else f"output.{head}.weight"]
    return output_logits(config, weight, x) / own["temperature"]


def spread(logits: Float[Array, "*N Q"], inverse: Int[Array, "V"]) -> Float[Array, "*N V"]:
    """Logits over the target's vocabulary, -inf at the ids that the draft cannot say.

    inverse 2 0 1 2 with Q = 2:    a b   ->   -inf a b -inf
    """
    padded = jnp.pad(logits, (*((0, 0),) * (logits.ndim - 1), (0, 1)), constant_values=-jnp.inf)
    return jnp.take(padded, inverse, axis=-1, mode="clip")


def inverse_of(ids: Int[Array, "Q"], vocab: int) -> Int[Array, "V"]:
    """For every id of the target its place among the draft's `ids`; their number where it is none of them."""
    return jnp.full(vocab, len(ids), jnp.int32).at[ids].set(jnp.arange(len(ids), dtype=jnp.int32))


@functools.lru_cache(maxsize=64)
def small_model(config: DraftConfig) -> LanguageModel:
    """A distilled draft as a language model: its own layers between the target's embedding and output matrix.

    Its logits cover the target's vocabulary, -inf at tokens outside the draft's own. Parameters: the body's, and
    `output.weight` and `output.inverse` (`jaxspec.checkpoint.artifact.attach`).
    """
    base = language_model(config.body)

    def forward(params: Params, *inputs: Any, logits: bool = True, **part: Any) -> Output:
        out = base.forward(params, *inputs, logits=False, **part)
        said = spread(small_logits(config, params, out.hidden), params["output.inverse"]) if logits else None
        return out._replace(logits=said)

    return LanguageModel(config.body, base.init_cache, forward, base.commit)


def small_logits(config: DraftConfig, params: Params, hidden: Float[Array, "B T D"]) -> Float[Array, "B T Q"]:
    """Logits of a distilled draft over its own vocabulary."""
    body = config.body
    normed = rms_norm(params["norm.weight"], hidden.transpose(2, 0, 1), eps=body.norm_eps, offset=body.norm_offset)
    return draft_logits(config, params, normed)
