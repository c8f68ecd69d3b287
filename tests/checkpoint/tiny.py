"""Tiny checkpoints on disk: the families' random parameters as Hugging Face folders and as GGUF files."""

import functools
import json
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
import safetensors.numpy

from jaxspec.models import ModelConfig, config_from_hf, parameter_shapes

WINDOW = 8
SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
GEMMA = {**SIZES, "head_dim": 8, "sliding_window": WINDOW, "query_pre_attn_scalar": 8}
CONFIGS = {
    "llama": {"model_type": "llama", **SIZES, "num_key_value_heads": 4},
    "llama-bias": {"model_type": "llama", **SIZES, "attention_bias": True, "mlp_bias": True},
    "llama3": {"model_type": "llama", **SIZES, "head_dim": 16, "rope_theta": 500000.0, "rope_scaling": LLAMA3},
    "smollm2": {"model_type": "llama", **SIZES, "tie_word_embeddings": True, "rope_theta": 100000.0},
    "mistral": {"model_type": "mistral", **SIZES, "sliding_window": WINDOW, "head_dim": 16},
    "qwen2": {"model_type": "qwen2", **SIZES, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", **SIZES, "head_dim": 16},
    "gemma2": {"model_type": "gemma2", **GEMMA, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0},
    "gemma3": {"model_type": "gemma3_text", **GEMMA, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    "phi3": {"model_type": "phi3", **SIZES, "sliding_window": WINDOW, "pad_token_id": 0},
}
"""One config.json a family; Llama in four ways, since its variants differ in tensors."""

FAMILIES = tuple(CONFIGS)
GGUF_ARCHITECTURE = {"mistral": "llama", "gemma3_text": "gemma3"}
GGUF_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GGUF_GEMMA = GGUF_LAYER | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def hf_config(family: str) -> dict:
    return dict(CONFIGS[family])


def model_config(family: str) -> ModelConfig:
    return config_from_hf(CONFIGS[family])


@functools.cache
def _drawn(family: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        name: rng.standard_normal(spec.shape).astype(np.float32) * 0.2
        for name, spec in parameter_shapes(model_config(family)).items()
    }


def params(family: str, dtype: object = np.float32) -> dict[str, np.ndarray]:
    """Random parameters by our names."""
    return {name: array.astype(dtype) for name, array in _drawn(family).items()}


def hf_tensors(family: str, dtype: object = np.float32) -> dict[str, np.ndarray]:
    """The same by Hugging Face's names and in its layout."""
    found = {}
    ours = params(family, dtype)
    for name, array in ours.items():
        parts = [array]
        if hf_config(family)["model_type"] == "phi3" and name.endswith(("q_proj.weight", "gate_proj.weight")):
            others = ("k_proj", "v_proj") if "q_proj" in name else ("up_proj",)
            first = "q_proj" if "q_proj" in name else "gate_proj"
            parts += [ours[name.replace(first, other)] for other in others]
            name = name.replace("q_proj", "qkv_proj").replace("gate_proj", "gate_up_proj")
        elif hf_config(family)["model_type"] == "phi3" and name.endswith(
            ("k_proj.weight", "v_proj.weight", "up_proj.weight")
        ):
            continue
        found[name if name.startswith("lm_head") else f"model.{name}"] = np.concatenate(parts)
    return found


def write_hf(folder: Path, config: Mapping, tensors: Mapping[str, np.ndarray], *, shards: int = 1) -> Path:
    """A Hugging Face folder, written by the safetensors library."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        safetensors.numpy.save_file(dict(tensors), folder / "model.safetensors", {"format": "pt"})
        return folder
    weight_map = {name: f"model-{i % shards + 1:05d}-of-{shards:05d}.safetensors" for i, name in enumerate(tensors)}
    for file in set(weight_map.values()):
        members = {name: array for name, array in tensors.items() if weight_map[name] == file}
        safetensors.numpy.save_file(members, folder / file, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def read_hf(folder: Path) -> dict[str, np.ndarray]:
    """All tensors of a folder, read by the safetensors library."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= safetensors.numpy.load_file(file)
    return found


def write_gguf(
    path: Path,
    family: str,
    *,
    encode: Callable[[str, np.ndarray], tuple[np.ndarray, gguf.GGMLQuantizationType]] | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """A family's parameters as a GGUF file, in the layout that llama.cpp's converter gives them."""
    config, hf = model_config(family), hf_config(family)
    arch = GGUF_ARCHITECTURE.get(hf["model_type"], hf["model_type"])
    writer = gguf.GGUFWriter(path, arch)
    write_metadata(writer, arch, config)
    stored = {gguf_name(name, arch): stored_layout(name, p, arch, config) for name, p in gguf_parts(family).items()}
    for name, array in (stored | dict(extra or {})).items():
        data, kind = encode(name, array) if encode else (array.astype(np.float32), gguf.GGMLQuantizationType.F32)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_metadata(writer: gguf.GGUFWriter, arch: str, config: ModelConfig) -> None:
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.rotary_dim)
    window = next((w for w in config.windows if w is not None), None)
    if window is not None and arch != "qwen3":
        writer.add_sliding_window(window)
    if config.attention_softcap is not None:
        writer.add_attn_logit_softcapping(config.attention_softcap)
    if config.final_softcap is not None:
        writer.add_final_logit_softcapping(config.final_softcap)
    if config.rope_scaling.kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope_scaling.factor)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def gguf_parts(family: str) -> dict[str, np.ndarray]:
    ours = params(family)
    if family != "phi3":
        return ours
    return {name.removeprefix("model."): array for name, array in hf_tensors(family).items()}


def gguf_name(name: str, arch: str) -> str:
    if not name.startswith("layers."):
        stem = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}[name.split(".")[0]]
        return f"{stem}.weight"
    _, layer, *module, kind = name.split(".")
    table = GGUF_GEMMA if arch.startswith("gemma") else GGUF_LAYER
    table = table | {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
    return f"blk.{layer}.{table['.'.join(module)]}.{kind}"


def stored_layout(name: str, array: np.ndarray, arch: str, config: ModelConfig) -> np.ndarray:
    """Rotary pairs side by side in the llama architecture, gemma's norms plus one."""
    if arch.startswith("gemma") and name.endswith("norm.weight"):
        return array + 1
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(name.split(".")[-2])
    if arch != "llama" or heads is None:
        return array
    order = [
        [head * config.head_dim + i + half for i in range(config.head_dim // 2) for half in (0, config.head_dim // 2)]
        for head in range(heads)
    ]
    return array[np.concatenate(order)]


def safetensors_bytes(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A .safetensors file with any header at all."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def run(code: str, *arguments: object) -> subprocess.CompletedProcess:
    """A fresh process: one that is killed, limited or measured."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
