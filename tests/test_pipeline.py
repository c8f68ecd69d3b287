"""What the pipeline decides before the engine runs."""

import dataclasses
from pathlib import Path

import jax
import pytest

from jaxspec.models import ModelConfig, RopeScaling, language_model
from jaxspec.pipeline import load, model_for
from jaxspec.run import domains_of
from jaxspec.sharding import make_mesh

TINY = str(Path(__file__).parents[1] / "checkpoints" / "tiny" / "target")

CONFIG = ModelConfig(
    family="phi3",
    vocab_size=32,
    hidden_size=16,
    intermediate_size=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=2,
    head_dim=8,
    max_positions=256,
)
LONG = RopeScaling(
    kind="longrope",
    factor=4.0,
    original_max_positions=64,
    short_factor=(1.0, 1.0, 1.0, 1.0),
    long_factor=(1.0, 2.0, 3.0, 4.0),
)


def test_a_longrope_model_changes_once_beyond_its_trained_context():
    model = language_model(dataclasses.replace(CONFIG, rope_scaling=LONG))
    within, beyond = model_for(model, 64), model_for(model, 65)
    assert within is model_for(model, 1)
    assert beyond is model_for(model, 200)
    assert within.config != beyond.config


def test_other_models_are_the_same_at_every_length():
    model = language_model(CONFIG)
    assert model_for(model, 1) is model
    assert model_for(model, 200) is model


def test_one_device_is_no_mesh(monkeypatch):
    """Its weights are fused then, as without a mesh."""
    monkeypatch.setattr("jaxspec.pipeline.make_mesh", lambda text: make_mesh(text, jax.devices()[:1]))
    assert load(TINY, mesh="data=1,model=1").mesh is None
    assert load(TINY, mesh="data=1,model=1").target.model.config.fused
    assert load(TINY).target.model is load(TINY, mesh="data=1,model=1").target.model


@pytest.mark.parametrize(
    ("domain", "sentence"),
    [(["code"], "domain has 1 entries for 2 prompts"), ("", "not empty"), (["code", ""], "not empty")],
)
def test_kinds_of_text_that_name_nothing_are_refused(domain, sentence):
    with pytest.raises(ValueError, match=sentence):
        domains_of(domain, 2)


def test_one_kind_of_text_is_every_prompts():
    assert domains_of("code", 2) == ["code", "code"]
    assert domains_of(None, 2) == [None, None]
    assert domains_of(["code", None], 2) == ["code", None]
