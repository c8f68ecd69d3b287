"""What a GGUF file says about its model, in Hugging Face's terms: config fields, tensor names and layouts."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxspec.checkpoint import gguf
from jaxspec.checkpoint.gguf import GGUFFile, TensorInfo
from jaxspec.checkpoint.tensors import CheckpointError, LazyTensor, mapped

_MODEL = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA = _LAYER | {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_ROPE = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")


@dataclass(frozen=True)
class _Architecture:
    model_type: str
    classname: str
    layer: dict[str, str]
    interleaved: bool = (
        False  # rows of q and k are stored pair by pair (2i, 2i+1), Hugging Face has halves (i, i + H/2)
    )
    norm_offset: float = 0.0  # added to every norm weight when the file was written


ARCHITECTURES = {
    "llama": _Architecture("llama", "LlamaForCausalLM", _LAYER, interleaved=True),
    "qwen2": _Architecture("qwen2", "Qwen2ForCausalLM", _LAYER),
    "qwen3": _Architecture("qwen3", "Qwen3ForCausalLM", _LAYER),
    "gemma2": _Architecture("gemma2", "Gemma2ForCausalLM", _GEMMA, norm_offset=1.0),
    "gemma3": _Architecture("gemma3_text", "Gemma3ForCausalLM", _GEMMA, norm_offset=1.0),
    "phi3": _Architecture("phi3", "Phi3ForCausalLM", _LAYER),
}


class _Fields:
    """The metadata of one architecture: typed reading with errors that name the field."""

    def __init__(self, file: GGUFFile):
        self.file = file
        self.name = file.fields.get("general.architecture")
        if self.name not in ARCHITECTURES:
            raise CheckpointError(
                f"{file.path}: architecture {self.name!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
            )
        self.arch = ARCHITECTURES[self.name]

    def fail(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.file.path}: {what}; convert the model to GGUF again")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.file.fields.get(f"{self.name}.{key}", default)
        if isinstance(value, list) and len(set(map(str, value))) == 1:  # one value a layer, all equal
            value = value[0]
        if type(value) is not int or not 0 < value < 2**31:
            raise self.fail(f"metadata field '{self.name}.{key}' is {value!r}, not a positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float | None:
        value = self.file.fields.get(f"{self.name}.{key}", default)
        if value is None:
            return None
        if type(value) not in (int, float) or not math.isfinite(value):
            raise self.fail(f"metadata field '{self.name}.{key}' is {value!r}, not a finite number")
        return float(str(np.float32(value)))  # 1e-05, not the float32's 9.999999747378752e-06

    def token(self, key: str) -> int | None:
        value = self.file.fields.get(f"tokenizer.ggml.{key}_token_id")
        return value if type(value) is int else None

    def vector(self, name: str) -> list[float] | None:
        info = self.file.tensors.get(name)
        if info is None:
            return None
        values = gguf.dequantise(self.file.path, info, np.dtype(np.float32)).ravel()
        if not np.all(np.isfinite(values)) or np.any(values <= 0):
            raise self.fail(f"tensor {name!r} has values that are not positive")
        return [float(v) for v in values]


def hf_config(file: GGUFFile) -> dict[str, Any]:
    """The model's `config.json` in Hugging Face's terms. Raises CheckpointError on what is missing or unsupported."""
    fields = _Fields(file)
    if file.fields.get("split.count", 1) not in (0, 1):
        raise fields.fail("this is one part of a split model; merge the parts first")
    if file.fields.get(f"{fields.name}.expert_count", 0):
        raise CheckpointError(f"{file.path}: mixtures of experts are not supported; give a dense model")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise fields.fail("there is no matrix 'token_embd.weight'")
    layers, width, heads = map(fields.integer, ("block_count", "embedding_length", "attention.head_count"))
    if layers > len(file.tensors):
        raise fields.fail(f"it claims {layers} layers and has {len(file.tensors)} tensors")
    head_dim = fields.integer("attention.key_length", width // heads)
    config = {
        "architectures": [fields.arch.classname],
        "model_type": fields.arch.model_type,
        "vocab_size": embedding.shape[0],
        "hidden_size": width,
        "intermediate_size": fields.integer("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": fields.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": fields.integer("context_length"),
        "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon", 1e-5),
        "rope_theta": fields.number("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(fields),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "hidden_act": "silu",
        "bos_token_id": fields.token("bos"),
        "eos_token_id": _end_tokens(fields),
        "pad_token_id": fields.token("padding"),
        "torch_dtype": "float32",
    }
    return config | _family_fields(fields, config)


def _end_tokens(fields: _Fields) -> int | list[int] | None:
    ids = dict.fromkeys(i for i in map(fields.token, ("eos", "eot", "eom")) if i is not None)
    return list(ids) if len(ids) > 1 else next(iter(ids), None)


def _family_fields(fields: _Fields, config: dict[str, Any]) -> dict[str, Any]:
    """Fields that one family has and others lack."""
    tensors = fields.file.tensors
    window = fields.file.fields.get(f"{fields.name}.attention.sliding_window")
    if fields.name == "llama":
        biases = {"attention_bias": "blk.0.attn_q.bias" in tensors, "mlp_bias": "blk.0.ffn_gate.bias" in tensors}
        if not window:
            return biases
        return {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": window}
    if fields.name == "qwen2":
        return {"use_sliding_window": False}
    if fields.name == "qwen3":
        return {"use_sliding_window": False, "attention_bias": "blk.0.attn_q.bias" in tensors}
    if fields.name == "phi3":
        rotary = fields.integer("rope.dimension_count", config["head_dim"])
        original = fields.integer("rope.scaling.original_context_length", config["max_position_embeddings"])
        return {
            "sliding_window": window or None,
            "partial_rotary_factor": rotary / config["head_dim"],
            "original_max_position_embeddings": original,
        }
    return _gemma_fields(fields, config)


def _gemma_fields(fields: _Fields, config: dict[str, Any]) -> dict[str, Any]:
    # The scale of the scores is not stored: it is the head's size, but for the 27B models (Gemma 2: 46 layers, 3: 62).
    layers = config["num_hidden_layers"]
    large = (fields.name, layers) in {("gemma2", 46), ("gemma3", 62)}
    scalar = config["hidden_size"] // config["num_attention_heads"] if large else config["head_dim"]
    period = fields.integer("attention.sliding_window_pattern", 2 if fields.name == "gemma2" else 6)
    found = {
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scalar,
        "sliding_window": fields.integer("attention.sliding_window", 4096),
        "layer_types": ["full_attention" if (i + 1) % period == 0 else "sliding_attention" for i in range(layers)],
        "attn_logit_softcapping": fields.number("attn_logit_softcapping"),
        "final_logit_softcapping": fields.number("final_logit_softcapping"),
    }
    if fields.name == "gemma3":
        found["rope_local_base_freq"] = fields.number("rope.freq_base_swa", 10000.0)
    return found


def _rope_scaling(fields: _Fields) -> dict[str, Any] | None:
    """`rope_scaling` of the config; stored divisors of the frequencies become "longrope" with both factors equal."""
    context = fields.integer("context_length")
    original = fields.integer("rope.scaling.original_context_length", context)
    divisors, short, long = map(fields.vector, _ROPE)
    if short is not None and long is not None:
        found: dict[str, Any] = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
        attention = fields.number("rope.scaling.attn_factor")
        return found if attention is None else found | {"attention_factor": attention}
    if divisors is not None:
        if all(d == 1.0 for d in divisors):
            return None
        found = {"rope_type": "longrope", "short_factor": divisors, "long_factor": divisors, "attention_factor": 1.0}
        return found | {"original_max_position_embeddings": original, "factor": 1.0}
    kind = fields.file.fields.get(f"{fields.name}.rope.scaling.type", "linear")
    factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear"))
    if kind == "none" or factor in (None, 0.0, 1.0):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        found = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        betas = {"beta_fast": "rope.scaling.yarn_beta_fast", "beta_slow": "rope.scaling.yarn_beta_slow"}
        return found | {key: v for key, field in betas.items() if (v := fields.number(field)) is not None}
    raise fields.fail(f"rope scaling {kind!r} is not supported (none, linear, yarn and stored factors are)")


def tensors(file: GGUFFile, config: dict[str, Any]) -> dict[str, LazyTensor]:
    """All weights under our names, in Hugging Face's layout; unknown names are kept, for the check to report."""
    arch = _Fields(file).arch
    found: dict[str, LazyTensor] = {}
    for name, info in file.tensors.items():
        if name in _ROPE:
            continue
        for ours, part in _split(_rename(name, arch), info, config):
            found[ours] = _to_hf_layout(ours, gguf.lazy(file, part), arch, config)
    return found


def _rename(name: str, arch: _Architecture) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _MODEL:
        return f"{_MODEL[stem]}.{kind}"
    block, _, rest = stem.partition(".")
    number, _, part = rest.partition(".")
    if block != "blk" or part not in arch.layer | {"attn_qkv": ""}:
        return name
    return f"layers.{number}.{arch.layer.get(part, 'self_attn.qkv_proj')}.{kind}"


def _split(name: str, info: TensorInfo, config: dict[str, Any]) -> list[tuple[str, TensorInfo]]:
    """Phi-3 stores q, k, v in one matrix, and gate and up in another: their parts, each with its name."""
    head, inner = config["head_dim"], config["intermediate_size"]
    if ".qkv_proj." in name:
        sizes = {"q_proj": config["num_attention_heads"] * head}
        sizes |= dict.fromkeys(("k_proj", "v_proj"), config["num_key_value_heads"] * head)
        fused = "qkv_proj"
    elif ".mlp.up_proj." in name and info.shape[0] == 2 * inner:
        sizes, fused = {"gate_proj": inner, "up_proj": inner}, "up_proj"
    else:
        return [(name, info)]
    if sum(sizes.values()) != info.shape[0]:
        return [(name, info)]
    parts, at = [], 0
    for part, size in sizes.items():
        parts.append((name.replace(fused, part), gguf.rows(info, at, at + size)))
        at += size
    return parts


def _less(tensor: LazyTensor, offset: float, dtype: np.dtype) -> np.ndarray:
    return (tensor.cast_to(np.dtype(np.float32)) - np.float32(offset)).astype(dtype)


def _module(name: str) -> str:
    """self_attn.q_proj of layers.7.self_attn.q_proj.weight"""
    return ".".join(name.split(".")[2:-1])


def _to_hf_layout(name: str, tensor: LazyTensor, arch: _Architecture, config: dict[str, Any]) -> LazyTensor:
    if arch.norm_offset and name.endswith("norm.weight"):
        return replace(tensor, load=lambda dtype: _less(tensor, arch.norm_offset, dtype))
    heads = {"self_attn.q_proj": "num_attention_heads", "self_attn.k_proj": "num_key_value_heads"}.get(_module(name))
    if not arch.interleaved or heads is None or tensor.shape[0] % (2 * config[heads]):
        return tensor
    count = config[heads]

    def halves(array: np.ndarray) -> np.ndarray:
        # One head of size 6, rows 0 3 1 4 2 5 as stored -> [3, 2] -> transposed [2, 3] -> 0 1 2 3 4 5.
        pairs = array.reshape(count, -1, 2, *array.shape[1:])
        return pairs.swapaxes(1, 2).reshape(array.shape)

    return mapped(tensor, tensor.shape, halves)
