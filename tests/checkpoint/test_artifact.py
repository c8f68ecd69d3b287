"""Trained drafts on disk: whole or not at all, tied to a target, refused by name where they are broken."""

import dataclasses
import json
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.checkpoint import Artifact, CheckpointError, attach, open_draft, save_draft
from jaxspec.checkpoint.artifact import IDS, RECORD, stored_shapes
from jaxspec.models import ModelConfig, RopeScaling, parameter_shapes
from jaxspec.models.heads import DraftConfig

SCALING = RopeScaling(kind="longrope", original_max_positions=16, short_factor=(1.0, 1.5), long_factor=(2.0, 4.0))
TARGET = ModelConfig("llama", 20, 8, 12, 3, 2, 1, 4, 64, rope_scaling=SCALING, eos_ids=(1, 2))
BODY = dataclasses.replace(TARGET, num_layers=1)
DRAFTS = {
    "medusa": DraftConfig("medusa", BODY, 6, heads=2, blocks=2, taps=(3,)),
    "medusa-own": DraftConfig("medusa", BODY, 20, heads=2, own_output=True),
    "exit": DraftConfig("exit", BODY, 6, layers=2, rank=3),
    "lm": DraftConfig("lm", dataclasses.replace(BODY, num_layers=2), 20, layers=2),
    "eagle": DraftConfig("feature", BODY, 20, taps=(3,), layout="eagle"),
    "eagle3": DraftConfig("feature", BODY, 6, taps=(1, 2), own_output=True, norm_before_residual=True),
    "wider": DraftConfig(
        "feature",
        dataclasses.replace(BODY, hidden_size=12, qkv_bias=True, qk_norm=True),
        6,
        taps=(1, 3),
        own_output=True,
        own_embedding=True,
        target_size=8,
        fc_bias=True,
    ),
}
IDENTITY = "a" * 64


def parameters(config: DraftConfig, *, seed: int = 0) -> dict[str, np.ndarray]:
    """Random ones; an ascending vocabulary."""
    rng = np.random.default_rng(seed)
    drawn = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in stored_shapes(config).items()}
    ids = np.sort(rng.choice(config.body.vocab_size, config.vocab, replace=False)).astype(np.int32)
    return drawn | {IDS: ids}


def target_params() -> dict:
    rng = np.random.default_rng(9)
    return {n: jnp.asarray(rng.standard_normal(s.shape), jnp.float32) for n, s in parameter_shapes(TARGET).items()}


def written(folder: Path, name: str = "eagle3", **options) -> Path:
    config = DRAFTS[name]
    save_draft(folder, config, parameters(config), target=IDENTITY, **options)
    return folder


@pytest.mark.parametrize("name", DRAFTS)
def test_what_is_read_is_what_was_written(name, tmp_path):
    config = DRAFTS[name]
    params = parameters(config)
    save_draft(tmp_path / "d", config, params, target=IDENTITY, temperature=0.8, card={"steps": 7})
    found = open_draft(tmp_path / "d")
    assert (found.config, found.target, found.temperature, found.card) == (config, IDENTITY, 0.8, {"steps": 7})
    assert hash(found.config) == hash(config)
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == [RECORD, "model.safetensors"]
    assert set(found.tensors) == set(params)
    for key, tensor in found.tensors.items():
        assert tensor.dtype == (np.int32 if key == IDS else jnp.bfloat16)
        assert np.array_equal(tensor, params[key].astype(tensor.dtype))
    exact = {"dtype": jnp.float32, "overwrite": True}
    save_draft(tmp_path / "d", config, params, target="", **exact)
    assert all(np.array_equal(tensor, params[key]) for key, tensor in open_draft(tmp_path / "d").tensors.items())


@pytest.mark.parametrize("name", DRAFTS)
def test_what_a_draft_shares_comes_from_the_target(name, tmp_path):
    config, whole = DRAFTS[name], target_params()
    stored = {n: leaf for n, leaf in parameters(config).items() if n != "norm.weight" or config.target_size}
    save_draft(tmp_path / "d", config, stored, target=IDENTITY, temperature=0.5)
    own = attach(open_draft(tmp_path / "d"), TARGET, whole, IDENTITY)
    ids = stored[IDS]
    assert own["temperature"] == 0.5
    assert own["output.inverse"].tolist() == [
        ids.tolist().index(token) if token in ids else len(ids) for token in range(TARGET.vocab_size)
    ]
    assert (own["norm.weight"] is whole["norm.weight"]) == (not config.target_size)
    if config.kind in ("feature", "lm"):
        assert (own["embed_tokens.weight"] is whole["embed_tokens.weight"]) == (not config.own_embedding)
    if not config.own_output and config.vocab == TARGET.vocab_size:
        assert own["output.weight"] is whole["lm_head.weight"]
    elif not config.own_output:
        assert np.array_equal(own["output.weight"], whole["lm_head.weight"][ids])
    for key, leaf in own.items():
        assert key in (IDS, "output.inverse") or leaf.dtype == jnp.float32
    tied = {n: leaf for n, leaf in whole.items() if n != "lm_head.weight"}
    if not config.own_output:
        other = attach(open_draft(tmp_path / "d"), TARGET, tied, IDENTITY)
        assert np.array_equal(other["output.weight"], whole["embed_tokens.weight"][ids])


def test_a_draft_of_another_target_is_refused(tmp_path):
    artifact, params = open_draft(written(tmp_path / "d")), target_params()
    with pytest.raises(CheckpointError, match=r"another target \(weights aaaaaaaaaaaa, these are bbb.*--kind feature"):
        attach(artifact, TARGET, params, "b" * 64)
    attach(dataclasses.replace(artifact, target=""), TARGET, params, "b" * 64)
    for size in ({"hidden_size": 16}, {"vocab_size": 21}):
        with pytest.raises(CheckpointError, match="is for a target of width 8 and 20 tokens"):
            attach(artifact, dataclasses.replace(TARGET, **size), params, IDENTITY)


@pytest.mark.parametrize(("name", "layers"), [("eagle3", 1), ("exit", 1), ("medusa", 2), ("eagle", 2), ("eagle", 4)])
def test_a_target_must_have_the_layers_that_are_read(name, layers, tmp_path):
    artifact = open_draft(written(tmp_path / "d", name))
    with pytest.raises(CheckpointError, match=f"reads after layer .*this one has {layers} layers"):
        attach(artifact, dataclasses.replace(TARGET, num_layers=layers), target_params(), IDENTITY)


def test_every_tensor_that_does_not_fit_is_named_at_once(tmp_path):
    config = DRAFTS["eagle3"]
    params = parameters(config) | {"stray": np.zeros(3, np.float32), "fc.weight": np.zeros((8, 8), np.float32)}
    del params["self_attn.q_proj.weight"]
    with pytest.raises(CheckpointError) as caught:
        save_draft(tmp_path / "d", config, params, target=IDENTITY)
    for line in (
        "3 tensors do not match draft.json",
        "missing: self_attn.q_proj.weight [8, 16]",
        "unexpected: stray [3]",
        "misshapen: fc.weight is [8, 8], the config asks for [8, 16]",
    ):
        assert line in str(caught.value)
    assert not (tmp_path / "d").exists()


def change(folder: Path, **fields: object) -> None:
    record = json.loads((folder / RECORD).read_text())
    for name, value in fields.items():
        *path, last = name.split("__")
        inner = record
        for step in path:
            inner = inner[step]
        inner[last] = value
    (folder / RECORD).write_text(json.dumps(record))


def reweigh(folder: Path, **tensors: np.ndarray) -> None:
    """The same draft with other weights, past the checks of saving."""
    from jaxspec.checkpoint import safetensors
    from jaxspec.checkpoint.tensors import in_memory

    found = dict(open_draft(folder).tensors) | {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    held = {name: np.array(tensor) for name, tensor in found.items()}
    safetensors.write_folder(folder, {n: in_memory(t) for n, t in held.items()}, max_shard_bytes=1 << 30)


def cut(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def ids(*tokens: int, dtype: type = np.int32) -> dict[str, np.ndarray]:
    return {"output__ids": np.asarray(tokens, dtype)}


BROKEN = {
    "no record": (lambda d: (d / RECORD).unlink(), "has no draft.json; give the folder of a trained draft"),
    "cut record": (lambda d: cut(d / RECORD, 20), "draft.json cannot be read"),
    "no UTF-8": (lambda d: (d / RECORD).write_bytes(b"\xff\xfe"), "draft.json cannot be read"),
    "deep": (lambda d: (d / RECORD).write_text("[" * 100_000), "draft.json cannot be read"),
    "a list": (lambda d: (d / RECORD).write_text("[]"), "is of no format this version reads (1)"),
    "new format": (lambda d: change(d, format=2), "is of no format this version reads (1)"),
    "no config": (lambda d: change(d, config=None), "draft.json is broken"),
    "no scaling": (lambda d: change(d, config__body__rope_scaling=None), "draft.json is broken"),
    "new field": (lambda d: change(d, config__depth=2), "draft.json is broken"),
    "new kind": (lambda d: change(d, config__kind="tree"), "draft kind 'tree' is unknown"),
    "many heads": (lambda d: change(d, config__heads=10**9), "a whole number from 1 to 64"),
    "cold": (lambda d: change(d, temperature=0), "has temperature 0.0; it must be above 0"),
    "no number": (lambda d: change(d, temperature=float("nan")), "it must be above 0"),
    "huge number": (lambda d: change(d, temperature=10**400), "draft.json is broken"),
    "no card": (lambda d: change(d, card=3), "draft.json is broken"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "no model.safetensors"),
    "cut weights": (lambda d: cut(d / "model.safetensors", 1), "not a usable safetensors file"),
    "half of them": (lambda d: cut(d / "model.safetensors", 1500), "not a usable safetensors file"),
    "another's": (lambda d: change(d, config__taps=[1]), "misshapen: fc.weight is [8, 16], the config asks for [8, 8]"),
    "order": (lambda d: reweigh(d, **ids(0, 1, 3, 2, 4, 5)), "out of order or outside"),
    "twice": (lambda d: reweigh(d, **ids(0, 1, 2, 2, 4, 5)), "out of order or outside"),
    "outside": (lambda d: reweigh(d, **ids(0, 1, 2, 3, 4, 20)), "out of order or outside"),
    "negative": (lambda d: reweigh(d, **ids(-1, 1, 2, 3, 4, 5)), "out of order or outside"),
    "wide ids": (lambda d: reweigh(d, **ids(0, 1, 2, 3, 4, 5, dtype=np.int64)), "out of order or outside"),
    "no floats": (lambda d: reweigh(d, fc__weight=np.zeros((8, 16), np.int8)), "fc.weight is int8, not floating-point"),
    "no numbers": (lambda d: reweigh(d, norm__weight=np.full(8, np.inf, np.float32)), "holds NaN or infinity"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_one_is_refused_in_a_sentence(name, tmp_path):
    folder = written(tmp_path / "d")
    assert isinstance(open_draft(folder), Artifact)
    spoil, sentence = BROKEN[name]
    spoil(folder)
    with pytest.raises(CheckpointError, match=re.escape(sentence)) as caught:
        open_draft(folder)
    assert str(folder) in str(caught.value)


def test_a_record_of_before_the_newest_fields_is_read(tmp_path):
    save_draft(tmp_path / "d", DRAFTS["eagle"], parameters(DRAFTS["eagle"]), target=IDENTITY)
    record = json.loads((tmp_path / "d" / RECORD).read_text())
    for field in ("own_embedding", "target_size", "fc_bias", "norm_before_residual"):
        del record["config"][field]
    (tmp_path / "d" / RECORD).write_text(json.dumps(record))
    assert open_draft(tmp_path / "d").config == DRAFTS["eagle"]


def test_only_drafts_are_replaced_and_only_when_told(tmp_path):
    folder = written(tmp_path / "d")
    with pytest.raises(CheckpointError, match="already exists"):
        written(folder, "exit")
    assert open_draft(folder).config == DRAFTS["eagle3"]
    written(folder, "exit", overwrite=True)
    assert open_draft(folder).config == DRAFTS["exit"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("years of work")
    with pytest.raises(CheckpointError, match="only those are overwritten"):
        written(tmp_path / "other", overwrite=True)
    assert (tmp_path / "other" / "thesis.txt").read_text() == "years of work"


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def full(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("jaxspec.checkpoint.artifact.safetensors.write_folder", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        written(tmp_path / "d")
    assert list(tmp_path.iterdir()) == []
