"""What a decoder-only transformer of the supported families is made of: one frozen, hashable record."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context; `kind` "none" leaves them as they are.

    Kinds and their fields are those of Hugging Face's `rope_scaling`: linear, dynamic, yarn, llama3, longrope.
    """

    kind: str = "none"
    factor: float = 1.0
    original_max_positions: int = 0
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
    divisors: tuple[float, ...] = ()  # "divisors": each frequency is divided by its own number (GGUF's rope_freqs)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer. All fields are static: another value is another compiled program."""

    family: str
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

    def window(self, layer: int) -> int | None:
        """Sliding window of a layer in tokens, None where it attends globally."""
        return self.windows[layer] if self.windows else None
