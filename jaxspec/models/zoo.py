"""Between Hugging Face's config.json and `ModelConfig`, for every supported family."""

import math
from collections.abc import Mapping
from typing import Any

from jaxspec.models.config import ModelConfig
from jaxspec.models.families import COMMON, FAMILIES, FULL, NEUTRAL, SLIDING, TABLE, Family, Fields, layer_windows
from jaxspec.models.limits import SIZES, check_integer, check_number
from jaxspec.models.rope_layout import rope_from_hf, rope_to_hf

NAMES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "max_positions": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
    "tie_embeddings": "tie_word_embeddings",
}
"""Our name of a field and Hugging Face's, where the value is the same and every family has it."""

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}


def config_from_hf(config: Mapping[str, Any]) -> ModelConfig:
    """Read a Hugging Face config.json, of transformers 5 (`rope_parameters`) or before (`rope_scaling`).

    Args:
        config: the parsed file. What it leaves out has the value that transformers gives it.

    Raises:
        ValueError: a family or architecture that is not supported, a size that is missing or absurd, or a field that
            would change the result and is not supported.
    """
    name, fields = _fields(config)
    family = TABLE[name]
    _refuse_unsupported(name, family, fields)
    for ours, theirs in NAMES.items():  # sizes first: the rest is derived from them
        if ours in SIZES:
            check_integer(theirs, fields.get(theirs), 1, SIZES[ours])
    heads = fields["num_attention_heads"]
    bias = _flag(fields, "attention_bias")
    settings = {
        "num_kv_heads": heads if fields["num_key_value_heads"] is None else fields["num_key_value_heads"],
        "head_dim": _head_dim(fields),
        "activation": _activation(fields),
        "qkv_bias": bias,
        "out_bias": bias,
        "mlp_bias": _flag(fields, "mlp_bias"),
        "query_scale": _query_scale(fields),
        "embed_scale": math.sqrt(fields["hidden_size"]) if name.startswith("gemma") else 1.0,
        "attention_softcap": fields.get("attn_logit_softcapping"),
        "final_softcap": fields.get("final_logit_softcapping"),
        "windows": layer_windows(family, fields),
        "bos_id": fields["bos_token_id"],
        "eos_ids": _token_ids(fields["eos_token_id"]),
    }
    settings |= {ours: fields[theirs] for ours, theirs in NAMES.items()}
    settings |= {"tie_embeddings": _flag(fields, "tie_word_embeddings")}
    return ModelConfig(family=name, **(settings | rope_from_hf(name, family, fields) | dict(family.fixed)))


def config_to_hf(config: ModelConfig) -> dict[str, Any]:
    """Write a Hugging Face config.json that `config_from_hf` and transformers read as the same model.

    Raises:
        ValueError: the family has no field that could say what the config says.
    """
    family = TABLE.get(config.family)
    if family is None:
        raise ValueError(_unsupported("family", config.family))
    gemma = "hidden_activation" in family.defaults
    hf: dict[str, Any] = {"architectures": [family.architectures[0]], "model_type": config.family}
    hf |= {theirs: getattr(config, ours) for ours, theirs in NAMES.items()}
    hf |= {"num_key_value_heads": config.num_kv_heads, "head_dim": config.head_dim}
    activation = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}[config.activation]
    hf["hidden_activation" if gemma else "hidden_act"] = activation
    # a default of transformers may lie beyond a small vocabulary, and an unpadded row needs none
    hf |= {"bos_token_id": config.bos_id, "eos_token_id": _as_token_id(config.eos_ids), "pad_token_id": None}
    said = {
        "attention_bias": config.qkv_bias and config.out_bias,
        "mlp_bias": config.mlp_bias,
        "query_pre_attn_scalar": None if config.query_scale is None else _inverse_square(config.query_scale),
        "attn_logit_softcapping": config.attention_softcap,
        "final_logit_softcapping": config.final_softcap,
    }
    hf |= {name: value for name, value in said.items() if name in family.defaults}
    hf |= _windows_to_hf(family, config) | rope_to_hf(family, config)
    _check_says_it_all(config, hf)
    return hf


def _fields(config: Mapping[str, Any]) -> tuple[str, Fields]:
    """Family and fields of a config.json, with defaults; the text part of a multimodal Gemma 3."""
    if not isinstance(config, Mapping):
        raise ValueError(f"a config is an object of fields; got {type(config).__name__}")
    name, fields = config.get("model_type"), dict(config)
    if name == "gemma3":
        text = config.get("text_config")
        if not isinstance(text, Mapping):
            raise ValueError("a gemma3 config has a text_config; it is missing here")
        shared = ("architectures", "tie_word_embeddings", "eos_token_id", "bos_token_id", "quantization_config")
        fields = {**text, **{key: config[key] for key in shared if config.get(key) is not None}}
        name = fields.get("model_type", "gemma3_text")
    if not isinstance(name, str) or name not in TABLE:
        raise ValueError(_unsupported("model_type", name))
    architectures, known = fields.get("architectures"), TABLE[name].architectures
    listed = isinstance(architectures, list | tuple) and any(each in known for each in architectures)
    if architectures and not listed:
        raise ValueError(f"architectures {architectures!r} are not supported; of family {name}, {', '.join(known)} is")
    return name, {**COMMON, **TABLE[name].defaults, **fields}


def _unsupported(what: str, name: object) -> str:
    return f"{what} {name!r} is not supported; supported are {', '.join(FAMILIES)} and gemma3 (its text part)"


def _refuse_unsupported(name: str, family: Family, fields: Fields) -> None:
    for field, neutral in NEUTRAL.items():
        if field not in family.reads and field in fields and fields[field] not in neutral:
            raise ValueError(f"{field} is {fields[field]!r}, which family {name} does not support; {neutral[-1]!r} is")


def _flag(fields: Fields, name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}; true or false is needed")
    return bool(value)


def _activation(fields: Fields) -> str:
    """Gemma's own field is hidden_activation; an older hidden_act beside it must not say something else."""
    name = fields.get("hidden_activation") or fields["hidden_act"]
    for said in (name, fields["hidden_act"] or name):
        if not isinstance(said, str) or ACTIVATIONS.get(said, said) != ACTIVATIONS.get(name):
            raise ValueError(f"activation {said!r} is not supported here; supported are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _head_dim(fields: Fields) -> Any:
    size, heads = fields["hidden_size"], fields["num_attention_heads"]
    if fields["head_dim"] is not None:
        return fields["head_dim"]
    if size % heads:
        raise ValueError(f"hidden_size is {size}, which {heads} heads do not divide; give head_dim")
    return size // heads


def _query_scale(fields: Fields) -> float | None:
    scalar = fields.get("query_pre_attn_scalar")
    if scalar is None:
        return None
    check_number("query_pre_attn_scalar", scalar, 0.0, 1e9, open_low=True)
    return float(scalar) ** -0.5


def _inverse_square(scale: float) -> int | float:
    """The scalar of which `scale` is the inverse root, whole where a whole one gives it."""
    whole = round(scale**-2)
    return whole if whole and whole**-0.5 == scale else scale**-2


def _token_ids(value: Any) -> tuple[int, ...]:
    ids = () if value is None else tuple(value) if isinstance(value, list | tuple) else (value,)
    for token in ids:
        check_integer("eos_token_id", token, 0, 2**31 - 1)
    return ids


def _as_token_id(ids: tuple[int, ...]) -> int | list[int] | None:
    if len(ids) > 1:
        return list(ids)
    return ids[0] if ids else None


def _windows_to_hf(family: Family, config: ModelConfig) -> dict[str, Any]:
    """sliding_window and which layers have it, in the fields of the family."""
    sizes = {size for size in config.windows if size is not None}
    if len(sizes) > 1:
        raise ValueError(
            f"sliding windows of {sorted(sizes)} tokens differ; a Hugging Face config has one for all layers"
        )
    said: dict[str, Any] = {"sliding_window": min(sizes, default=None)}
    layers = range(config.num_layers)
    if "use_sliding_window" in family.defaults or "sliding_window_pattern" in family.defaults:
        said["layer_types"] = [FULL if config.window(layer) is None else SLIDING for layer in layers]
    if "use_sliding_window" in family.defaults:
        first = min((layer for layer in layers if config.window(layer) is not None), default=config.num_layers)
        said |= {"use_sliding_window": bool(sizes), "max_window_layers": first}
    return said if "sliding_window" in family.reads else {}


def _check_says_it_all(config: ModelConfig, hf: Mapping[str, Any]) -> None:
    read = config_from_hf(hf)
    for name in ModelConfig.__dataclass_fields__:
        if getattr(read, name) != getattr(config, name):
            raise ValueError(
                f"{name} is {getattr(config, name)!r}, which a config of family {config.family} cannot say; "
                f"{getattr(read, name)!r} is what it would mean"
            )
