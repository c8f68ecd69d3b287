"""Every field of a config matters: another value changes the output, the shapes or what is written (P23)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tests.models.tiny as t
from jaxspec.models import ModelConfig, RopeScaling, config_to_hf, language_model, parameter_shapes

LENGTH = 24

SHAPES = {
    "vocab_size": ("llama2", 62),
    "hidden_size": ("llama2", 40),
    "intermediate_size": ("llama2", 49),
    "num_layers": ("llama2", 3),
    "num_heads": ("llama2", 8),
    "num_kv_heads": ("llama3", 1),
    "head_dim": ("llama2", 10),
    "tie_embeddings": ("llama2", True),
    "qkv_bias": ("llama2", True),
    "out_bias": ("llama2", True),
    "mlp_bias": ("llama2", True),
    "qk_norm": ("llama2", True),
    "post_norms": ("llama2", True),
    "fused": ("llama2", True),
}
"""A checkpoint of one value is refused with the other: its tensors have other names or shapes."""

LOGITS = {
    "max_positions": ("dynamic", 8),
    "norm_eps": ("llama2", 1e-2),
    "activation": ("llama2", "gelu"),
    "norm_offset": ("llama2", 1.0),
    "embed_scale": ("llama2", 2.0),
    "query_scale": ("llama2", 0.1),
    "attention_softcap": ("gemma2", None),
    "final_softcap": ("gemma2", 4.0),
    "windows": ("mistral", (8, None)),
    "rope_theta": ("llama2", 5e3),
    "rope_local_theta": ("gemma3", 200.0),
    "rope_scaling": ("llama2", RopeScaling("linear", factor=2.0)),
    "rotary_fraction": ("llama3", 0.5),
}

WRITTEN = {"family": ("llama2", "mistral"), "bos_id": ("llama2", 5), "eos_ids": ("llama2", (5, 6))}
"""Not part of the computation: the name of the family, and the ids that the engine and tokenizers read."""

SCALING = {
    "kind": ("linear", "dynamic"),
    "factor": ("linear", 5.0),
    "original_max_positions": ("yarn", 8),
    "low_freq_factor": ("llama3", 2.0),
    "high_freq_factor": ("llama3", 8.0),
    "attention_factor": ("yarn", 1.7),
    "beta_fast": ("yarn-betas", 9.0),
    "beta_slow": ("yarn-betas", 0.1),
    "mscale": ("yarn-mscale", 3.0),
    "mscale_all_dim": ("yarn-mscale", 3.0),
    "truncate": ("yarn-mscale", True),
    "short_factor": ("longrope", (2.0, 2.0, 2.0)),
    "long_factor": ("longrope", (2.0, 2.0, 2.0)),
    "length": ("dynamic", 30),
}
"""Fields of `RopeScaling`, all of which change the logits."""


def logits(config: ModelConfig, params: dict[str, jax.Array]) -> np.ndarray:
    """One pass, operation by operation: every config would otherwise compile a program of its own."""
    tokens = jnp.asarray(t.random_tokens(config, rows=1, length=LENGTH))
    positions = jnp.arange(LENGTH, dtype=jnp.int32)[None]
    model = language_model(config)
    cache = model.init_cache(1, 1, headroom=1)
    return np.asarray(model.forward(params, tokens, positions, t.chain_mask(1, LENGTH), cache).logits)


def test_no_field_is_left_out():
    """A new field needs an entry in one of the tables above."""
    assert {*SHAPES, *LOGITS, *WRITTEN} == {field.name for field in dataclasses.fields(ModelConfig)}
    assert SCALING.keys() == {field.name for field in dataclasses.fields(RopeScaling)}


@pytest.mark.parametrize("field", SHAPES)
def test_shapes_change(field: str):
    base, value = SHAPES[field]
    config = t.tiny(base)
    assert parameter_shapes(dataclasses.replace(config, **{field: value})) != parameter_shapes(config)


@pytest.mark.parametrize("field", LOGITS)
def test_logits_change(field: str):
    base, value = LOGITS[field]
    config = t.tiny(base)
    check_logits_change(config, dataclasses.replace(config, **{field: value}))


@pytest.mark.parametrize("field", SCALING)
def test_logits_change_with_the_rotary_scaling(field: str):
    base, value = SCALING[field]
    config = t.tiny(base)
    scaling = dataclasses.replace(config.rope_scaling, **{field: value})
    check_logits_change(config, dataclasses.replace(config, rope_scaling=scaling))


@pytest.mark.parametrize("field", WRITTEN)
def test_the_written_config_changes(field: str):
    base, value = WRITTEN[field]
    config = t.tiny(base)
    assert config_to_hf(dataclasses.replace(config, **{field: value})) != config_to_hf(config)


def test_the_comparison_finds_no_change_where_there_is_none():
    """Negative control: the same config, in another object."""
    config = t.tiny("llama2")
    with pytest.raises(AssertionError):
        check_logits_change(config, dataclasses.replace(config, bos_id=5))


def check_logits_change(config: ModelConfig, other: ModelConfig) -> None:
    params = t.random_params(config)
    assert np.abs(logits(config, params) - logits(other, params)).max() > 1e-3
