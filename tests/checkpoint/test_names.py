"""The table of parameters is the model's own, and every disagreement with a checkpoint is told at once."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import tests.checkpoint.tiny as tiny
from jaxspec.checkpoint import CheckpointError, convert, load_params, names, open_checkpoint
from jaxspec.models import parameter_shapes


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_table_is_the_models(family):
    config = tiny.model_config(family)
    assert names.expected_shapes(config) == {name: spec.shape for name, spec in parameter_shapes(config).items()}


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_folder_gives_our_parameters(family, shards, tmp_path):
    folder = tiny.write_hf(tmp_path, tiny.hf_config(family), tiny.hf_tensors(family), shards=shards)
    loaded = load_params(open_checkpoint(folder))
    expected = tiny.params(family)
    assert sorted(loaded) == sorted(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(loaded[name], array, err_msg=name)


def test_all_problems_are_in_one_error(tmp_path):
    tensors = tiny.hf_tensors("smollm2")
    del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.0.self_attn.q_proj.weight"] = np.zeros((32, 31), np.float32)
    tensors["model.layers.0.input_layernorm.weight"] = np.zeros(32, np.int8)
    tensors["model.layers.0.lora_A"] = np.zeros(3, np.float32)
    tensors["lm_head.weight"] = np.zeros((61, 32), np.float32)
    inverse = "model.layers.0.self_attn.rotary_emb.inv_freq"
    tensors[inverse] = np.ones(4, np.float32)
    with pytest.raises(CheckpointError, match="7 tensors do not match") as error:
        open_checkpoint(tiny.write_hf(tmp_path, tiny.hf_config("smollm2"), tensors))
    assert sorted(line.strip() for line in str(error.value).splitlines()[1:]) == [
        "contradictory: lm_head.weight differs from embed_tokens.weight, the config ties them",
        f"contradictory: {inverse} does not hold the frequencies of rope_theta 100000",
        "misshapen: layers.0.self_attn.q_proj.weight is [32, 31], the config asks for [32, 32]",
        "missing: layers.1.mlp.up_proj.weight [48, 32]",
        "missing: norm.weight [32]",
        "not floating: layers.0.input_layernorm.weight is int8",
        "unexpected: layers.0.lora_A [3]",
    ]


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_derived_tensors_are_checked_and_left_out(dtype, tmp_path):
    tensors = tiny.hf_tensors("smollm2", dtype)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    frequencies = 100000.0 ** (-np.arange(0, 8, 2) / 8)
    for layer in range(2):
        tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = frequencies.astype(dtype)
    opened = open_checkpoint(tiny.write_hf(tmp_path, tiny.hf_config("smollm2"), tensors))
    assert sorted(opened.tensors) == sorted(tiny.params("smollm2"))


def test_untied_head_is_not_derived(tmp_path):
    tensors = tiny.hf_tensors("llama")
    del tensors["lm_head.weight"]
    with pytest.raises(CheckpointError, match=r"missing: lm_head\.weight"):
        open_checkpoint(tiny.write_hf(tmp_path, tiny.hf_config("llama"), tensors))


def test_language_half_of_a_model_that_sees(tmp_path):
    text = tiny.hf_tensors("gemma3")
    tensors = {name.replace("model.", "language_model.model."): array for name, array in text.items()}
    tensors["vision_tower.vision_model.post_layernorm.weight"] = np.zeros(3, np.float32)
    tensors["multi_modal_projector.mm_soft_emb_norm.weight"] = np.zeros(3, np.float32)
    config = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {}}
    config["text_config"] = tiny.hf_config("gemma3")
    opened = open_checkpoint(tiny.write_hf(tmp_path, config, tensors))
    assert opened.config["model_type"] == "gemma3_text"
    for name, array in tiny.params("gemma3").items():
        np.testing.assert_array_equal(opened.tensors[name].read(), array)


def test_fused_matrices_of_other_sizes_are_told(tmp_path):
    tensors = tiny.hf_tensors("phi3")
    tensors["model.layers.0.self_attn.qkv_proj.weight"] = np.zeros((65, 32), np.float32)
    with pytest.raises(CheckpointError, match=r"unexpected: layers.0.self_attn.qkv_proj.weight \[65, 32\]"):
        open_checkpoint(tiny.write_hf(tmp_path, tiny.hf_config("phi3"), tensors))


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000, '{"model_type": "bert"}', '{"model_type": 3}', "{}"])
def test_unusable_config_is_an_error(text, tmp_path):
    tiny.write_hf(tmp_path, {}, tiny.hf_tensors("smollm2"))
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config|model_type|supported"):
        open_checkpoint(tmp_path)


def test_folder_without_config(tmp_path):
    safetensors.numpy.save_file({"a": np.ones(2, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        open_checkpoint(tmp_path)


def test_single_files_and_pickles(tmp_path):
    tiny.write_hf(tmp_path, tiny.hf_config("smollm2"), tiny.hf_tensors("smollm2"))
    assert open_checkpoint(tmp_path / "model.safetensors").kind == "safetensors"
    for name in ("model.bin", "model.pt", "model.pth"):
        (tmp_path / name).write_bytes(b"\x80\x04K*.")
        with pytest.raises(CheckpointError, match="pickled weights"):
            open_checkpoint(tmp_path / name)
    (tmp_path / "notes.txt").write_text(json.dumps("a text of more than twenty-four bytes"))
    with pytest.raises(CheckpointError, match="not a usable GGUF file: it starts with"):
        open_checkpoint(tmp_path / "notes.txt")


def test_folder_of_one_gguf_file(tmp_path):
    tiny.write_gguf(tmp_path / "m.gguf", "smollm2")
    assert open_checkpoint(tmp_path).path == tmp_path / "m.gguf"
    tiny.write_gguf(tmp_path / "other.gguf", "smollm2")
    with pytest.raises(CheckpointError, match="no model"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("kind", ["orbax", "hf"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused_by_name(kind, bad, tmp_path):
    tensors = dict(tiny.hf_tensors("smollm2"))
    source = tiny.write_hf(tmp_path / "good", tiny.hf_config("smollm2"), tensors)
    opened = open_checkpoint(source if kind == "hf" else convert(source, tmp_path / "good-orbax"))
    load_params(opened)  # the control
    name = next(name for name in tensors if name.endswith("layers.1.mlp.up_proj.weight"))
    tensors[name] = np.array(tensors[name])
    tensors[name].flat[17] = bad
    broken = tiny.write_hf(tmp_path / "bad", tiny.hf_config("smollm2"), tensors)
    opened = open_checkpoint(broken if kind == "hf" else convert(broken, tmp_path / "bad-orbax"))
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.up_proj\.weight holds NaN or infinity"):
        load_params(opened)
