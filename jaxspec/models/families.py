"""One record a family: what Hugging Face's model_type decides by itself, and what its config.json may say."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jaxspec.models.limits import check_integer

FULL, SLIDING = "full_attention", "sliding_attention"

Fields = Mapping[str, Any]
"""A config.json, with the family's defaults for what it leaves out."""


def never(fields: Fields) -> list[str]:
    """Every layer attends globally."""
    return [FULL] * fields["num_hidden_layers"]


def always(fields: Fields) -> list[str]:
    """Every layer slides if there is a window."""
    return [FULL if fields["sliding_window"] is None else SLIDING] * fields["num_hidden_layers"]


def upper(fields: Fields) -> list[str]:
    """Qwen: layers from max_window_layers upward slide, where use_sliding_window says so."""
    first = fields["max_window_layers"] if _window(fields) is not None else fields["num_hidden_layers"]
    check_integer("max_window_layers", first, 0, 2**30)
    return [SLIDING if layer >= first else FULL for layer in range(fields["num_hidden_layers"])]


def periodic(fields: Fields) -> list[str]:
    """Gemma: every nth layer attends globally (2nd in Gemma 2, 6th in Gemma 3)."""
    period = fields["sliding_window_pattern"]
    check_integer("sliding_window_pattern", period, 1, 2**30)
    return [SLIDING if (layer + 1) % period else FULL for layer in range(fields["num_hidden_layers"])]


@dataclasses.dataclass(frozen=True)
class Family:
    """A model_type of Hugging Face.

    `defaults` are transformers' own for fields that a config.json may leave out; `fixed` are fields of `ModelConfig`
    that the family decides and no config.json changes.
    """

    architectures: tuple[str, ...]
    layer_types: Callable[[Fields], list[str]]
    defaults: Fields
    fixed: Fields = dataclasses.field(default_factory=dict)
    reads: tuple[str, ...] = ()  # fields beyond those that every family reads
    scalings: tuple[str, ...] = ("none", "linear", "dynamic", "yarn", "llama3", "longrope")


COMMON = {
    "rms_norm_eps": 1e-6,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "rope_theta": None,
    "rope_scaling": None,
    "rope_parameters": None,
    "layer_types": None,
    "sliding_window": None,
}

GEMMA = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_act": None,
    "attention_bias": False,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 2,
    "final_logit_softcapping": None,
    "bos_token_id": 2,
    "eos_token_id": 1,
}

GEMMA_READS = ("sliding_window", "attention_bias", "query_pre_attn_scalar", "final_logit_softcapping")

QWEN = {"max_position_embeddings": 32768, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}

TABLE = {
    "llama": Family(  # Llama 2 and 3, SmolLM2
        ("LlamaForCausalLM",),
        never,
        {
            "max_position_embeddings": 2048,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        reads=("attention_bias", "mlp_bias"),
    ),
    "mistral": Family(
        ("MistralForCausalLM",),
        always,
        {
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
            "sliding_window": 4096,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        reads=("sliding_window",),
    ),
    "qwen2": Family(
        ("Qwen2ForCausalLM",),
        upper,
        {**QWEN, "num_key_value_heads": 32},
        fixed={"qkv_bias": True},
        reads=("sliding_window", "use_sliding_window"),
    ),
    "qwen3": Family(
        ("Qwen3ForCausalLM",),
        upper,
        {**QWEN, "num_key_value_heads": 32, "head_dim": 128, "attention_bias": False},
        fixed={"qk_norm": True},
        reads=("sliding_window", "use_sliding_window", "attention_bias"),
    ),
    "gemma2": Family(
        ("Gemma2ForCausalLM",),
        periodic,
        {**GEMMA, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
        fixed={"norm_offset": 1.0, "post_norms": True},
        reads=(*GEMMA_READS, "attn_logit_softcapping"),
    ),
    "gemma3_text": Family(
        ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
        periodic,
        {**GEMMA, "vocab_size": 262208, "max_position_embeddings": 131072, "sliding_window_pattern": 6}
        | {"rope_local_base_freq": None},
        fixed={"norm_offset": 1.0, "post_norms": True, "qk_norm": True},
        reads=GEMMA_READS,
    ),
    "phi3": Family(
        ("Phi3ForCausalLM",),
        always,
        {
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "partial_rotary_factor": None,
            "bos_token_id": 1,
            "eos_token_id": 32000,
        },
        reads=("sliding_window", "partial_rotary_factor"),
        scalings=("none", "longrope"),
    ),
}
"""The supported families by model_type; `gemma3` is the text part of such a checkpoint and reads as gemma3_text."""

FAMILIES = tuple(TABLE)

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention_bias": (None, False),
    "mlp_bias": (None, False),
    "qk_layernorm": (None, False),
    "use_qk_norm": (None, False),
    "use_bidirectional_attention": (None, False),
    "is_causal": (None, True),
    "is_encoder_decoder": (None, False),
    "add_cross_attention": (None, False),
    "rope_interleaved": (None, False),
    "partial_rotary_factor": (None, 1.0),
    "sliding_window": (None,),
    "use_sliding_window": (None, False),
    "attention_chunk_size": (None,),
    "query_pre_attn_scalar": (None,),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "embedding_multiplier": (None, 1.0),
    "residual_multiplier": (None, 1.0),
    "attention_multiplier": (None,),
    "logits_scaling": (None, 1.0),
    "logit_scale": (None, 1.0),
    "clip_qkv": (None,),
    "no_rope_layers": (None,),
    "no_rope_layer_interval": (None,),
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "num_nextn_predict_layers": (None, 0),
    "quantization_config": (None,),
    "lm_head_bias": (None, False),
    "use_mrope": (None, False),
}
"""Fields that change what some model computes, and the values at which they do not.

Other values are refused in a family that does not read the field. What is not named here changes nothing in the
supported families: dropout, initialisers, `pretraining_tp`, cache settings, fields of training tools.
"""


def _window(fields: Fields) -> Any:
    return fields["sliding_window"] if fields.get("use_sliding_window", True) else None


def layer_windows(family: Family, fields: Fields) -> tuple[int | None, ...]:
    """Each layer's sliding window in tokens, () where no layer has one.

    Raises:
        ValueError: layer types that are unknown, miscounted or at odds with the window.
    """
    types, window = fields["layer_types"], _window(fields)
    derived = family.layer_types(fields)
    if types is None:
        types = derived
    if window is not None:
        check_integer("sliding_window", window, 1, 2**30)
    known = isinstance(types, list | tuple) and all(kind in (FULL, SLIDING) for kind in types)
    if not known or len(types) != len(derived):
        raise ValueError(f"layer_types needs {len(derived)} entries, each {FULL!r} or {SLIDING!r}")
    if family.layer_types in (never, always) and list(types) != derived:
        raise ValueError(f"layer_types of this family are {derived[0]!r} in every layer, as its sliding_window says")
    if window is None and SLIDING in types:
        raise ValueError("layer_types has sliding_attention and there is no sliding_window; give its length in tokens")
    if SLIDING not in types:
        return ()
    return tuple(window if kind == SLIDING else None for kind in types)


__all__ = ["FAMILIES", "FULL", "NEUTRAL", "SLIDING", "TABLE", "Family", "Fields", "layer_windows"]
