"""A checkpoint in memory: a model, its weights on their devices, its tokenizer."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxspec.checkpoint import gather, load_params, open_checkpoint
from jaxspec.models import LanguageModel, ModelConfig, fuse, language_model, parameter_shapes
from jaxspec.sharding import param_shardings, replicated
from jaxspec.text import Tokenizer, from_folder, from_gguf
from jaxspec.typing import Params

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16}

LoadProgress = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A checkpoint in memory."""

    name: str
    model: LanguageModel
    params: Params
    tokenizer: Tokenizer


def load_model(
    name: str,
    *,
    dtype: str = "float32",
    mesh: Mesh | None = None,
    split: bool = False,
    progress: LoadProgress | None = None,
) -> Loaded:
    """A checkpoint by folder, file, hub id or the default target's name, with its tokenizer.

    Args:
        dtype: of the weights: "float32", "bfloat16" or "float16".
        mesh: devices to load onto, straight from the file; the default device where None.
        split: tensor-parallel over the mesh's model axis; on every device whole where False.
        progress: told (name, bytes done, bytes in all).

    Raises:
        ValueError: an unknown dtype or family, a broken or missing checkpoint, a folder without a tokenizer.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is unknown; choose {', '.join(DTYPES)}")
    source = open_checkpoint(name)
    config = ModelConfig.from_hf(source.config)
    where = source.tokenizer
    tokenizer = from_gguf(where) if isinstance(where, Mapping) else from_folder(where)
    told = None if progress is None else lambda done, total: progress(name, done, total)
    shardings = None if mesh is None else _shardings(config, mesh, split=split)
    params = load_params(source, dtype=DTYPES[dtype], shardings=shardings, progress=told)
    if mesh is None:
        config, params = fuse(config, params)
        params = gather(params)
    return Loaded(name, language_model(config), params, tokenizer)


def _shardings(config: ModelConfig, mesh: Mesh, *, split: bool) -> dict[str, jax.sharding.NamedSharding]:
    shapes = parameter_shapes(config)
    return param_shardings(shapes, mesh, head_dim=config.head_dim) if split else replicated(shapes, mesh)
