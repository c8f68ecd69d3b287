"""What a decoder-only transformer of the supported families is made of: one frozen, hashable record."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxspec.models.limits import (
    check_activation,
    check_integer,
    check_number,
    check_scaling,
    check_sizes,
    check_windows,
)


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context; `kind` "none" leaves them as they are.

    Kinds and fields are those of Hugging Face's `rope_scaling`: linear, dynamic, yarn, llama3, longrope. A field that
    the kind does not read must keep its default.

    Raises:
        ValueError: a kind that does not exist, a field outside its range, or one that the kind does not read.
    """

    kind: str = "none"
    factor: float = 1.0
    original_max_positions: int = 0  # yarn, llama3, longrope: trained context in tokens
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    attention_factor: float | None = None  # yarn, longrope: multiplies cos and sin; None means derived
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    mscale: float = 0.0  # yarn; 0 means absent
    mscale_all_dim: float = 0.0  # yarn; 0 means absent
    truncate: bool = True  # yarn: round the correction range
    short_factor: tuple[float, ...] = ()  # longrope
    long_factor: tuple[float, ...] = ()  # longrope
    length: int = 0  # dynamic, longrope: tokens of the sequence, see models/rope.py; 0 means up to each token

    def __post_init__(self) -> None:
        check_scaling(self)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer. All fields are static: another value is another compiled program.

    Raises:
        ValueError: a size, scale or window outside its range, or sizes that do not fit each other.
    """

    family: str  # Hugging Face's model_type
    vocab_size: int  # rows of the embedding, padding included
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    norm_eps: float = 1e-6
    activation: str = "silu"  # silu | gelu | gelu_tanh
    tie_embeddings: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMS norm of each head's query and key
    norm_offset: float = 0.0  # Gemma: weights are stored less one
    post_norms: bool = False  # Gemma 2, 3: a norm after attention and feed-forward, before the residual sum
    embed_scale: float = 1.0
    query_scale: float | None = None  # None means head_dim ** -0.5
    attention_softcap: float | None = None
    final_softcap: float | None = None
    windows: tuple[int | None, ...] = ()  # sliding window of each layer in tokens; () means none anywhere
    rope_theta: float = 10000.0
    rope_local_theta: float | None = None  # Gemma 3: base of the sliding-window layers, unscaled
    rope_scaling: RopeScaling = RopeScaling()
    rotary_fraction: float = 1.0  # Phi: share of the head that rotates
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    fused: bool = False  # q, k, v and gate, up lie in one matrix each, see models/fuse.py; in no config.json

    def __post_init__(self) -> None:
        check_sizes(self)
        check_activation(self.activation)
        check_windows(self.windows, self.num_layers)
        check_number("norm_eps", self.norm_eps, 0.0, 1.0)
        check_number("norm_offset", self.norm_offset, -1e3, 1e3)
        check_number("rope_theta", self.rope_theta, 1.0, 1e30, open_low=True)
        check_number("embed_scale", self.embed_scale, 0.0, 1e6, open_low=True)
        for name in ("query_scale", "attention_softcap", "final_softcap"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 0.0, 1e6, open_low=True)
        if self.rope_local_theta is not None:
            check_number("rope_local_theta", self.rope_local_theta, 1.0, 1e30, open_low=True)
        for token in (*self.eos_ids, *(() if self.bos_id is None else (self.bos_id,))):
            check_integer("bos_id or an eos_ids entry", token, 0, 2**31 - 1)

    def window(self, layer: int) -> int | None:
        """Sliding window of a layer in tokens, None where it attends globally."""
        return self.windows[layer] if self.windows else None

    @property
    def rotary_dim(self) -> int:
        """Features of a head that rotate, the first of it."""
        return int(self.head_dim * self.rotary_fraction)

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "ModelConfig":
        """Read a Hugging Face config.json; see `config_from_hf`."""
        from jaxspec.models.zoo import config_from_hf  # here: the zoo builds on this record

        return config_from_hf(config)

    def to_hf(self) -> dict[str, Any]:
        """Write a Hugging Face config.json; see `config_to_hf`."""
        from jaxspec.models.zoo import config_to_hf

        return config_to_hf(self)
