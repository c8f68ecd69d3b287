"""Conversions are bit-exact, keep or cast dtypes as asked, and transformers loads what they write."""

import json

import ml_dtypes
import numpy as np
import pytest

import tests.checkpoint.tiny as tiny
from jaxspec.checkpoint import CheckpointError, convert, open_checkpoint

TARGETS = ("orbax", "hf")


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_hf_orbax_hf_is_bit_exact(family, dtype, tmp_path):
    tensors, config = tiny.hf_tensors(family, dtype), tiny.hf_config(family)
    source = tiny.write_hf(tmp_path / "source", config, tensors, shards=2)
    (source / "generation_config.json").write_text('{"eos_token_id": 2}')
    convert(source, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", to="hf")
    back = tiny.read_hf(tmp_path / "back")
    assert sorted(back) == sorted(tensors)
    for name, array in tensors.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name].view(np.uint8), array.view(np.uint8), err_msg=name)
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == config
    assert (tmp_path / "back" / "generation_config.json").read_text() == '{"eos_token_id": 2}'


def test_mixed_dtypes_are_kept(tmp_path):
    tensors = tiny.hf_tensors("smollm2", ml_dtypes.bfloat16)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.float32)
    convert(tiny.write_hf(tmp_path / "source", tiny.hf_config("smollm2"), tensors), tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", to="hf")
    assert {name: array.dtype for name, array in tiny.read_hf(tmp_path / "back").items()} == {
        name: array.dtype for name, array in tensors.items()
    }


@pytest.mark.parametrize("to", TARGETS)
def test_cast(to, tmp_path):
    source = tiny.write_hf(tmp_path / "source", tiny.hf_config("smollm2"), tiny.hf_tensors("smollm2"))
    opened = open_checkpoint(convert(source, tmp_path / "cast", to=to, dtype="bfloat16"))
    assert opened.config["torch_dtype"] == "bfloat16"
    for name, array in tiny.params("smollm2").items():
        np.testing.assert_array_equal(opened.tensors[name].read(), array.astype(ml_dtypes.bfloat16))


def test_shards_are_as_large_as_asked(tmp_path):
    source = tiny.write_hf(tmp_path / "source", tiny.hf_config("llama"), tiny.hf_tensors("llama"))
    convert(source, tmp_path / "shards", to="hf", max_shard_bytes=20_000)
    files = list((tmp_path / "shards").glob("*.safetensors"))
    assert len(files) > 3
    assert all(path.stat().st_size < 24_000 for path in files)
    back = tiny.read_hf(tmp_path / "shards")
    for name, array in tiny.hf_tensors("llama").items():
        np.testing.assert_array_equal(back[name], array)


def test_bad_options_are_refused(tmp_path):
    source = tiny.write_hf(tmp_path / "source", tiny.hf_config("llama"), tiny.hf_tensors("llama"))
    with pytest.raises(CheckpointError, match="'onnx'; formats are orbax, hf"):
        convert(source, tmp_path / "out", to="onnx")
    with pytest.raises(CheckpointError, match="shard of 0 bytes"):
        convert(source, tmp_path / "out", to="hf", max_shard_bytes=0)
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_that_cannot_be_read_back_is_refused_before_anything_is_written(tmp_path):
    source = tiny.write_hf(tmp_path / "source", tiny.hf_config("llama"), tiny.hf_tensors("llama"))
    (source / "tokenizer.json").write_text('{"truncated": ')
    for to in ("orbax", "hf"):
        with pytest.raises(ValueError, match=r"tokenizer\.json"):
            convert(source, tmp_path / "out", to=to)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parity
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_transformers_loads_what_comes_back(family, tmp_path):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(**tiny.hf_config(family))
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(tmp_path / "source")
    original = AutoModelForCausalLM.from_pretrained(tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", to="hf", max_shard_bytes=20_000)
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    theirs = loaded.state_dict()
    for name, tensor in original.state_dict().items():
        assert theirs[name].dtype == torch.bfloat16
        assert torch.equal(theirs[name], tensor), name
    tokens = torch.arange(20)[None]
    assert torch.equal(original(tokens).logits, loaded(tokens).logits)


@pytest.mark.parity
@pytest.mark.parametrize("family", ["smollm2", "llama3", "qwen2", "gemma2", "gemma3", "phi3"])
def test_transformers_loads_a_converted_gguf(family, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    path = tiny.write_gguf(tmp_path / "m.gguf", family)
    convert(path, tmp_path / "hf", to="hf")
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    source = {name: torch.from_numpy(array) for name, array in tiny.hf_tensors(family).items()}
    for name, tensor in loaded.state_dict().items():
        if name in source:
            torch.testing.assert_close(tensor, source[name], atol=1e-6, rtol=0)
