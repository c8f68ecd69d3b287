"""A model with fused matrices is the model."""

import jax
import numpy as np
import pytest

import tests.models.tiny as t
from jaxspec.models import fuse, language_model, parameter_shapes, unfuse
from jaxspec.models.fuse import FUSED

NAMES = ("llama-bias", "qwen2", "qwen3", "gemma2", "phi3")


def fused_of(name: str) -> tuple:
    """Model, parameters, tokens, and the logits of one pass of the model as it was."""
    model, params = t.model_of(name)
    tokens = t.random_tokens(model.config, rows=2)
    expected = np.asarray(t.whole_pass(model, params, tokens))
    config, fused = fuse(model.config, dict(params))
    return language_model(config), fused, tokens, expected


@pytest.mark.parametrize("name", NAMES)
def test_fused_logits_are_those_of_the_model(name):
    model, params, tokens, expected = fused_of(name)
    np.testing.assert_allclose(np.asarray(t.whole_pass(model, params, tokens)), expected, rtol=0, atol=3e-5)
    shapes = {key: (leaf.shape, leaf.dtype) for key, leaf in params.items()}
    assert shapes == {key: (leaf.shape, leaf.dtype) for key, leaf in parameter_shapes(model.config).items()}


def test_another_order_of_the_parts_is_noticed(monkeypatch):
    monkeypatch.setitem(FUSED, "mlp.gate_up_proj", ("mlp.up_proj", "mlp.gate_proj"))
    model, params, tokens, expected = fused_of("qwen2")
    assert np.abs(np.asarray(t.whole_pass(model, params, tokens)) - expected).max() > 1e-3


def test_what_is_fused_is_held_once_and_fused_once():
    model, params = t.model_of("llama-bias")
    given = dict(params)
    config, fused = fuse(model.config, given)
    assert not [name for name in given if any(part in name for parts in FUSED.values() for part in parts)]
    assert sum(leaf.size for leaf in fused.values()) == sum(leaf.size for leaf in jax.tree.leaves(dict(params)))
    with pytest.raises(ValueError, match="fused already"):
        fuse(config, fused)


@pytest.mark.parametrize("name", NAMES)
def test_unfusing_gives_every_bit_back(name):
    model, params = t.model_of(name)
    config, again = unfuse(*fuse(model.config, dict(params)))
    assert config == model.config
    assert {key: np.asarray(leaf).tobytes() for key, leaf in again.items()} == {
        key: np.asarray(leaf).tobytes() for key, leaf in params.items()
    }
    assert unfuse(config, again) == (config, again), "nothing to undo"


def test_unfused_numpy_arrays_share_the_memory():
    model, params = t.model_of("llama-bias")
    config, fused = fuse(model.config, dict(params))
    host = {name: np.asarray(leaf) for name, leaf in fused.items()}
    _, apart = unfuse(config, host)
    for name, leaf in apart.items():
        assert any(np.shares_memory(leaf, whole) for whole in host.values()), name
