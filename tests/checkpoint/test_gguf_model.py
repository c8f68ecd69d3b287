"""A GGUF file gives back the parameters and the config that it was made of, in Hugging Face's layout."""

import dataclasses
import math

import gguf
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

import tests.checkpoint.tiny as tiny
from jaxspec.checkpoint import CheckpointError, convert, open_checkpoint
from jaxspec.models import ModelConfig
from jaxspec.models.rope import frequencies


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_parameters_come_back(family, tmp_path):
    opened = open_checkpoint(tiny.write_gguf(tmp_path / "m.gguf", family))
    expected = tiny.params(family)
    assert sorted(opened.tensors) == sorted(expected)
    for name, array in expected.items():
        tolerance = 1e-6 if "gemma" in family and name.endswith("norm.weight") else 0  # stored plus one
        np.testing.assert_allclose(opened.tensors[name].read(), array, atol=tolerance, rtol=0, err_msg=name)


def test_rows_of_the_llama_architecture_are_stored_otherwise(tmp_path, monkeypatch):
    """The control: without the converter's order of rows, the same reader gives other parameters."""
    monkeypatch.setattr(tiny, "stored_layout", lambda name, array, arch, config: array)
    opened = open_checkpoint(tiny.write_gguf(tmp_path / "m.gguf", "smollm2"))
    expected = tiny.params("smollm2")
    wrong = {name for name, array in expected.items() if not np.array_equal(opened.tensors[name].read(), array)}
    assert wrong == {f"layers.{i}.self_attn.{p}.weight" for i in range(2) for p in ("q_proj", "k_proj")}


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_config_comes_back(family, tmp_path):
    """All of it, but for llama3's formula, whose outcome is stored as rope_freqs and tested below."""
    got = ModelConfig.from_hf(open_checkpoint(tiny.write_gguf(tmp_path / "m.gguf", family)).config)
    expected = tiny.model_config(family)
    unread = {"rope_scaling": got.rope_scaling} if family == "llama3" else {}
    assert dataclasses.asdict(got) == dataclasses.asdict(dataclasses.replace(expected, **unread))


def llama3_divisors(config: ModelConfig) -> np.ndarray:
    """What llama.cpp's converter writes into rope_freqs.weight for Llama 3.1's scaling."""
    scaling, size = config.rope_scaling, config.head_dim
    low = scaling.original_max_positions / scaling.low_freq_factor
    high = scaling.original_max_positions / scaling.high_freq_factor
    out = []
    for i in range(0, size, 2):
        wavelength = 2 * math.pi * config.rope_theta ** (i / size)
        if wavelength < high:
            out.append(1.0)
        elif wavelength > low:
            out.append(scaling.factor)
        else:
            span = scaling.high_freq_factor - scaling.low_freq_factor
            smooth = (scaling.original_max_positions / wavelength - scaling.low_freq_factor) / span
            out.append(1 / ((1 - smooth) / scaling.factor + smooth))
    return np.array(out, np.float32)


def angular(config: ModelConfig) -> np.ndarray:
    values, factor = frequencies(config, jnp.zeros((1, 1), jnp.int32), local=False)
    assert factor == 1.0
    return np.asarray(values)


def test_rope_freqs_take_effect(tmp_path):
    config = tiny.model_config("llama3")
    divisors = llama3_divisors(config)
    assert len(set(divisors.tolist())) > 2  # kept, blended and stretched frequencies are all there
    extra = {"rope_freqs.weight": divisors}
    opened = open_checkpoint(tiny.write_gguf(tmp_path / "scaled.gguf", "llama3", extra=extra))
    plain = open_checkpoint(tiny.write_gguf(tmp_path / "plain.gguf", "llama3"))
    assert "rope_freqs.weight" not in opened.tensors
    np.testing.assert_allclose(angular(ModelConfig.from_hf(opened.config)), angular(config), rtol=1e-6)
    assert not np.allclose(angular(ModelConfig.from_hf(plain.config)), angular(config), rtol=1e-2)  # the control


def test_rope_freqs_of_ones_change_nothing(tmp_path):
    extra = {"rope_freqs.weight": np.ones(8, np.float32)}
    opened = open_checkpoint(tiny.write_gguf(tmp_path / "m.gguf", "llama3", extra=extra))
    assert opened.config["rope_scaling"] is None


@pytest.mark.parametrize("bad", [np.zeros(8), np.full(8, np.nan), np.full(5, 2.0)])
def test_absurd_rope_freqs_are_refused(bad, tmp_path):
    path = tiny.write_gguf(tmp_path / "m.gguf", "llama3", extra={"rope_freqs.weight": bad.astype(np.float32)})
    with pytest.raises(ValueError, match=r"rope_freqs|factor"):
        open_checkpoint(path)


def test_long_and_short_factors_of_phi(tmp_path):
    short, long = np.full(4, 1.5, np.float32), np.full(4, 3.0, np.float32)
    extra = {"rope_factors_short.weight": short, "rope_factors_long.weight": long}
    config = open_checkpoint(tiny.write_gguf(tmp_path / "m.gguf", "phi3", extra=extra)).config
    assert config["rope_scaling"] == {"rope_type": "longrope", "short_factor": [1.5] * 4, "long_factor": [3.0] * 4}


def test_quantised_model_keeps_its_layout(tmp_path):
    """Rows are put in order after they are dequantised: blocks run along rows."""

    def encode(name, array):
        kind = Kind.Q8_0 if array.ndim == 2 and array.shape[1] % 32 == 0 else Kind.F32
        return gguf.quants.quantize(array.astype(np.float32), kind), kind

    opened = open_checkpoint(tiny.write_gguf(tmp_path / "m.gguf", "smollm2", encode=encode))
    for name, array in tiny.params("smollm2").items():
        assert np.abs(opened.tensors[name].read() - array).max() <= np.abs(array).max() / 100, name


def test_every_wrong_tensor_is_in_one_error(tmp_path, monkeypatch):
    whole = tiny.gguf_parts("smollm2")
    damaged = {name: array for name, array in whole.items() if ".1.mlp." not in name}
    damaged["norm.weight"] = np.zeros(31, np.float32)
    monkeypatch.setattr(tiny, "gguf_parts", lambda family: damaged)
    path = tiny.write_gguf(tmp_path / "m.gguf", "smollm2", extra={"blk.0.odd.weight": np.zeros(3, np.float32)})
    with pytest.raises(CheckpointError, match="5 tensors do not match") as error:
        open_checkpoint(path)
    listed = [line.strip() for line in str(error.value).splitlines()[1:]]
    assert sorted(listed) == [
        "misshapen: norm.weight is [31], the config asks for [32]",
        "missing: layers.1.mlp.down_proj.weight [32, 48]",
        "missing: layers.1.mlp.gate_proj.weight [48, 32]",
        "missing: layers.1.mlp.up_proj.weight [48, 32]",
        "unexpected: blk.0.odd.weight [3]",
    ]


def write_fields(path, arch: str, **fields: object):
    writer = gguf.GGUFWriter(path, arch)
    for name, value in fields.items():
        writer.add_key_value(name.replace("__", "."), value, gguf.GGUFValueType.get_type(value))
    writer.add_tensor("token_embd.weight", np.zeros((61, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("arch", "fields", "message"),
    [
        ("bert", {}, "architecture 'bert' is not supported; supported are llama, qwen2"),
        ("llama", {}, "llama.block_count' is None"),
        ("llama", {"split__count": 3}, "one part of a split model"),
        ("llama", {"llama__expert_count": 8}, "mixtures of experts"),
        (
            "llama",
            {"llama__block_count": 2**31 - 1, "llama__embedding_length": 32, "llama__attention__head_count": 4},
            "claims",
        ),
        ("llama", {"llama__block_count": "many"}, "'many', not a positive integer"),
        ("llama", {"llama__block_count": [1, 2]}, "not a positive integer"),
    ],
)
def test_unusable_metadata_is_named(arch, fields, message, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(write_fields(tmp_path / "m.gguf", arch, **fields))


@pytest.mark.parity
def test_transformers_reads_the_stored_frequencies(tmp_path):
    from transformers import AutoModelForCausalLM

    config = tiny.model_config("llama3")
    path = tiny.write_gguf(tmp_path / "m.gguf", "llama3", extra={"rope_freqs.weight": llama3_divisors(config)})
    model = AutoModelForCausalLM.from_pretrained(convert(path, tmp_path / "hf", to="hf"))
    rotary = model.model.rotary_emb
    np.testing.assert_allclose(rotary.inv_freq.numpy(), angular(config), rtol=1e-6)
    assert rotary.attention_scaling == 1.0


@pytest.mark.parity
@pytest.mark.parametrize("family", ["smollm2", "qwen2", "qwen3", "gemma2"])
def test_transformers_reads_the_same_tensors(family, tmp_path):
    import torch
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path = tiny.write_gguf(tmp_path / "m.gguf", family)
    opened = open_checkpoint(path)
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**opened.config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    theirs = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    names = {name.removeprefix("model."): tensor.numpy() for name, tensor in theirs.items()}
    assert set(opened.tensors) <= set(names)
    for name, tensor in opened.tensors.items():
        np.testing.assert_allclose(tensor.read(), names[name], atol=1e-6, err_msg=name)


@pytest.mark.model
def test_smollm2_reads(smollm2):
    opened = open_checkpoint(smollm2)
    assert opened.config["tie_word_embeddings"] is True
    assert len(opened.tensors) == 272
    embedding = opened.tensors["embed_tokens.weight"].read()
    assert embedding.shape == (49152, 576)
    assert 0.05 < np.std(embedding.astype(np.float32)) < 0.5
