"""Between Hugging Face's tensor names and layouts and ours: their names less "model.", fused matrices split."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from jaxspec.checkpoint import safetensors
from jaxspec.checkpoint.safetensors import TensorInfo
from jaxspec.checkpoint.tensors import LazyTensor, Shape, differences, report, rows_equal
from jaxspec.models.config import ModelConfig
from jaxspec.models.fuse import FUSED, rows_of

_PREFIXES = ("language_model.model.", "model.language_model.", "language_model.", "model.")
_OTHER_MODALITIES = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


def expected_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Name and shape of every parameter. Said here again, since tracing the model for them takes seconds."""
    width, inner = config.hidden_size, config.intermediate_size
    heads, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linear = {
        "self_attn.q_proj": (heads, width, config.qkv_bias),
        "self_attn.k_proj": (kv, width, config.qkv_bias),
        "self_attn.v_proj": (kv, width, config.qkv_bias),
        "self_attn.o_proj": (width, heads, config.out_bias),
        "mlp.gate_proj": (inner, width, config.mlp_bias),
        "mlp.up_proj": (inner, width, config.mlp_bias),
        "mlp.down_proj": (width, inner, config.mlp_bias),
    }
    norms: dict[str, int] = {"input_layernorm": width, "post_attention_layernorm": width}
    if config.post_norms:
        norms |= {"pre_feedforward_layernorm": width, "post_feedforward_layernorm": width}
    if config.qk_norm:
        norms |= {"self_attn.q_norm": config.head_dim, "self_attn.k_norm": config.head_dim}
    layer: dict[str, Shape] = {f"{name}.weight": (rows, columns) for name, (rows, columns, _) in linear.items()}
    layer |= {f"{name}.bias": (rows,) for name, (rows, _, bias) in linear.items() if bias}
    layer |= {f"{name}.weight": (size,) for name, size in norms.items()}
    found: dict[str, Shape] = {"embed_tokens.weight": (config.vocab_size, width)}
    found |= {f"layers.{i}.{name}": shape for i in range(config.num_layers) for name, shape in layer.items()}
    found["norm.weight"] = (width,)
    return found if config.tie_embeddings else found | {"lm_head.weight": (config.vocab_size, width)}


def check(
    found: Mapping[str, LazyTensor], config: ModelConfig, *, where: str, problems: list[str] | None = None
) -> None:
    """Raise one CheckpointError that names every tensor that is missing, unexpected, misshapen or not of floats.

    `problems` are lines found before, told in the same error.
    """
    lines = list(problems or ())
    expected = expected_shapes(config)
    lines += differences({name: tensor.shape for name, tensor in found.items()}, expected)
    lines += [
        f"not floating: {name} is {t.dtype}" for name, t in found.items() if name in expected and not _floating(t)
    ]
    report(lines, where=where)


def _floating(tensor: LazyTensor) -> bool:
    return tensor.dtype.name in ("float16", "bfloat16", "float32", "float64")


def from_hf(infos: Mapping[str, TensorInfo], config: ModelConfig) -> tuple[dict[str, LazyTensor], list[str]]:
    """Our tensors, and problems with those that could be derived (tied output, rotary frequencies) but disagree."""
    found: dict[str, LazyTensor] = {}
    problems: list[str] = []
    for name, info in infos.items():
        if name.startswith(_OTHER_MODALITIES):
            continue
        ours = _strip(name)
        if ours.endswith("rotary_emb.inv_freq"):
            problems += _check_frequencies(name, safetensors.lazy(info), config)
            continue
        for part, piece in _split(ours, info, config):
            found[part] = safetensors.lazy(piece)
    if config.tie_embeddings and "lm_head.weight" in found:
        head = found.pop("lm_head.weight")
        if "embed_tokens.weight" in found and not rows_equal(head, found["embed_tokens.weight"]):
            problems.append("contradictory: lm_head.weight differs from embed_tokens.weight, the config ties them")
    return found, problems


def _strip(name: str) -> str:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def _check_frequencies(name: str, tensor: LazyTensor, config: ModelConfig) -> list[str]:
    """Old checkpoints store the unscaled inverse frequencies; scaling, where there is one, was applied after them."""
    size = config.rotary_dim
    bases = [config.rope_theta] + ([] if config.rope_local_theta is None else [config.rope_local_theta])
    expected = [base ** (-np.arange(0, size, 2) / size) for base in bases]
    values = tensor.cast_to(np.dtype(np.float32)).ravel()
    tolerance = 1e-4 if tensor.dtype.itemsize >= 4 else 1e-2
    if any(values.shape == e.shape and np.allclose(values, e, rtol=tolerance) for e in expected):
        return []
    return [f"contradictory: {name} does not hold the frequencies of rope_theta {config.rope_theta:g}"]


def _split(name: str, info: TensorInfo, config: ModelConfig) -> list[tuple[str, TensorInfo]]:
    """Parts of a fused matrix, by rows: q, k, v or gate, up. One that has other rows is left to the check."""
    sizes = rows_of(config)
    for fused, parts in FUSED.items():
        if f".{fused}." in name and info.shape and info.shape[0] == sum(sizes[fused]):
            stops = np.cumsum(sizes[fused]).tolist()
            pieces = (safetensors.rows(info, stop - size, stop) for stop, size in zip(stops, sizes[fused], strict=True))
            return [(name.replace(fused, part), piece) for part, piece in zip(parts, pieces, strict=True)]
    return [(name, info)]


def to_hf(tensors: Mapping[str, LazyTensor], config: Mapping[str, Any]) -> dict[str, LazyTensor]:
    """Hugging Face's names and layouts; Phi-3's parts are fused again."""
    found: dict[str, LazyTensor] = {}
    for name, tensor in tensors.items():
        whole, parts = _fused(name, tensors) if config.get("model_type") == "phi3" else (name, [tensor])
        if parts:
            found[whole if whole.startswith("lm_head.") else f"model.{whole}"] = concatenated(parts)
    return found


def _fused(name: str, tensors: Mapping[str, LazyTensor]) -> tuple[str, list[LazyTensor]]:
    """The fused matrix that `name` is the first part of, with all parts; no parts for a later one."""
    for fused, parts in FUSED.items():
        for part in parts:
            if f".{part}." in name:
                siblings = [tensors[name.replace(part, sibling)] for sibling in parts]
                return name.replace(part, fused), siblings if part == parts[0] else []
    return name, [tensors[name]]


def concatenated(parts: list[LazyTensor]) -> LazyTensor:
    """Tensors below one another, as one that is put together when it is read."""
    if len(parts) == 1:
        return parts[0]
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    return replace(
        parts[0], shape=shape, load=lambda dtype: np.concatenate([part.cast_to(dtype) for part in parts], axis=0)
    )
