"""Open a checkpoint of any kind, and load its parameters straight to a dtype and a sharding, one tensor at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.checkpoint import gguf, gguf_model, hub, names, safetensors
from jaxspec.checkpoint.config_file import CONFIG, is_ours, read_config
from jaxspec.checkpoint.placement import Shardings, sharding_of
from jaxspec.checkpoint.tensors import CheckpointError, LazyTensor, Progress
from jaxspec.models.config import ModelConfig


@dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint, checked; no weight is held.

    `config` is a Hugging Face config.json, `tensors` our names (Hugging Face's less "model.") to lazy tensors,
    `tokenizer` the folder that holds the tokenizer's files, or the metadata fields of a GGUF file.
    """

    path: Path
    kind: str  # "gguf" | "safetensors" | "orbax"
    config: dict[str, Any]
    tensors: Mapping[str, LazyTensor]
    tokenizer: Path | dict[str, Any]


def open_checkpoint(name: str | Path) -> Checkpoint:
    """Open a local file or folder, the default target by its name, or a hub id.

    Raises CheckpointError (a ValueError) if there is no such thing, if it is broken, or if its weights and its config
    do not match, with every missing, unexpected and misshapen tensor named.
    """
    path = hub.resolve(name)
    if path.is_dir():
        if is_ours(path):
            from jaxspec.checkpoint import store  # here: Orbax takes a second to import, and GGUF needs none of it

            return Checkpoint(path, "orbax", *store.open_folder(path), path)
        files = [] if (path / CONFIG).is_file() else list(path.glob("*.gguf"))
        return _open_gguf(files[0]) if len(files) == 1 else _open_hf(path, None)
    if path.suffix in safetensors.PICKLES:
        raise safetensors.refuse_pickle(path)
    if path.suffix == ".safetensors":
        return _open_hf(path.parent, path)
    return _open_gguf(path)


def _open_gguf(path: Path) -> Checkpoint:
    file = gguf.read(path)
    config = gguf_model.hf_config(file)
    tensors = gguf_model.tensors(file, config)
    names.check(tensors, ModelConfig.from_hf(config), where=str(path))
    return Checkpoint(path, "gguf", config, tensors, file.fields)


def _open_hf(folder: Path, file: Path | None) -> Checkpoint:
    infos = safetensors.read_folder(folder) if file is None else safetensors.read_header(file)
    config = _text_config(read_config(folder))
    model = ModelConfig.from_hf(config)
    tensors, problems = names.from_hf(infos, model)
    names.check(tensors, model, where=str(folder), problems=problems)
    return Checkpoint(folder, "safetensors", config, tensors, folder)


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The language half of a model that also sees: Gemma 3 is one, and its text half has a type of its own."""
    text = config.get("text_config")
    if config.get("model_type") != "gemma3" or not isinstance(text, dict):
        return config
    outer = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id", "dtype") if key in config}
    return outer | text | {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}


def load_params(
    source: Checkpoint,
    *,
    dtype: Any = None,
    shardings: Shardings | None = None,
    progress: Progress | None = None,
) -> dict[str, jax.Array]:
    """All parameters of `source` on their shardings: the host holds one tensor at a time.

    `dtype` casts every tensor; None keeps the stored types (float32 for quantised ones). `shardings` is one sharding,
    a mapping by name, or a function of name and shape; None means the default device. `progress(done, total)` counts
    bytes.
    """
    total, done = sum(t.nbytes for t in source.tensors.values()), 0
    if source.kind == "orbax":
        from jaxspec.checkpoint import store

        params = store.restore(source.path, source.tensors, shardings=shardings, dtype=dtype)
        for name, leaf in params.items():
            check_finite(source.path, name, leaf)
        if progress is not None:
            progress(total, total)
        return params
    params = {}
    for name, tensor in source.tensors.items():
        host = tensor.read() if dtype is None else tensor.cast_to(np.dtype(dtype))
        check_finite(source.path, name, host)
        params[name] = jax.device_put(host, sharding_of(shardings, name, tensor.shape))
        done += tensor.nbytes
        if progress is not None:
            progress(done, total)
    return params


def check_finite(path: Path, name: str, values: np.ndarray | jax.Array) -> None:
    """Refuse weights that are no numbers: every logit would be NaN, and every output empty.

    Raises:
        CheckpointError: `values`, a floating-point array on the host or on devices, has a NaN or an infinity.
    """
    if isinstance(values, np.ndarray) or next(iter(values.devices())).platform == "cpu":
        host = np.asarray(values)
        with np.errstate(all="ignore"):
            total = np.sum(host, dtype=np.float32)  # one pass, and nothing allocated
        good = bool(np.isfinite(total) or np.all(np.isfinite(host)))
    else:
        good = bool(jnp.all(jnp.isfinite(values)))
    if not good:
        raise CheckpointError(f"{path}: {name} holds NaN or infinity; fetch or convert the checkpoint again")
