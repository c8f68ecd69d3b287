"""Hugging Face configs: read in both layouts, written back as the same model, refused with one clear sentence."""

import dataclasses
import math

import pytest

import tests.models.tiny as t
from jaxspec.models import FAMILIES, ModelConfig, RopeScaling, config_from_hf, config_to_hf

ALL = t.FAMILIES | t.SCALINGS | t.LENGTH_SCALINGS
LLAMA = t.llama()


@pytest.mark.parametrize("name", ALL)
def test_written_and_read_again_is_the_same(name: str):
    config = config_from_hf(ALL[name])
    assert ModelConfig.from_hf(config.to_hf()) == config
    assert config_from_hf(config_to_hf(config)) == config


def test_every_family_has_a_tiny_model():
    assert {fields["model_type"] for fields in t.FAMILIES.values()} == set(FAMILIES)


def test_both_layouts_of_the_rotary_part_are_the_same():
    old = t.llama(rope_theta=5e5, rope_scaling=t.LLAMA3)
    new = t.llama(rope_parameters={**t.LLAMA3, "rope_theta": 5e5})
    assert config_from_hf(old) == config_from_hf(new)
    assert config_from_hf(old).rope_theta == 5e5
    assert config_from_hf(old).rope_scaling == RopeScaling(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=512
    )


def test_layer_kinds():
    assert config_from_hf(t.FAMILIES["qwen2"]).windows == ()
    assert config_from_hf(t.FAMILIES["qwen2-sliding"]).windows == (None, 8)
    assert config_from_hf(t.FAMILIES["qwen3"]).windows == (8, None)
    assert config_from_hf(t.FAMILIES["phi3"]).windows == (8, 8)
    gemma3 = {**t.FAMILIES["gemma3"], "num_hidden_layers": 7, "sliding_window_pattern": 6}
    assert config_from_hf(gemma3).windows == (8, 8, 8, 8, 8, None, 8)


def test_what_is_derived():
    config = config_from_hf({**LLAMA, "num_key_value_heads": None})
    assert (config.head_dim, config.num_kv_heads, config.eos_ids) == (8, 4, (2,))
    gemma = config_from_hf(t.FAMILIES["gemma2"])
    assert gemma.embed_scale == math.sqrt(32)
    assert gemma.query_scale == 11**-0.5
    assert config_from_hf({**LLAMA, "eos_token_id": [7, 9]}).eos_ids == (7, 9)


def test_a_multimodal_gemma3_is_its_text_part():
    text = {key: value for key, value in t.FAMILIES["gemma3"].items() if key != "model_type"}
    both = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    config = config_from_hf({**both, "eos_token_id": [1, 106]})
    assert config == dataclasses.replace(config_from_hf(t.FAMILIES["gemma3"]), eos_ids=(1, 106))


def test_yarn_without_a_factor_takes_the_ratio_of_the_contexts():
    scaling = {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 16}
    assert config_from_hf(t.llama(rope_scaling=scaling)).rope_scaling.factor == 4.0


REFUSED = {
    "unknown family": ({"model_type": "mamba"}, "model_type 'mamba' is not supported; supported are llama, mistral"),
    "no family": ({"model_type": None}, "model_type None is not supported"),
    "family of the wrong type": ({"model_type": ["llama"]}, "is not supported; supported are"),
    "classifier": (
        {"architectures": ["LlamaForSequenceClassification"]},
        "'LlamaForSequenceClassification'.* are not supported; of family llama, LlamaForCausalLM is",
    ),
    "no layers": ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    "negative size": ({"hidden_size": -32}, "hidden_size is -32"),
    "absurd size": ({"vocab_size": 2**40}, "vocab_size is 1099511627776"),
    "an epsilon that no float holds": ({"rms_norm_eps": 10**400}, "norm_eps is 1000"),
    "absurd depth": ({"num_hidden_layers": 10**9}, "num_hidden_layers is"),
    "size as text": ({"hidden_size": "32"}, "hidden_size is '32'"),
    "size as a fraction": ({"intermediate_size": 48.5}, "intermediate_size is 48.5"),
    "size as a flag": ({"num_attention_heads": True}, "num_attention_heads is True"),
    "missing size": ({"intermediate_size": None}, "intermediate_size is None"),
    "head groups": ({"num_key_value_heads": 3}, "num_heads is 4; a multiple of num_kv_heads 3"),
    "no key-value heads": ({"num_key_value_heads": 0}, "num_kv_heads is 0"),
    "odd heads": ({"head_dim": 7}, "an even number is needed"),
    "norm_eps": ({"rms_norm_eps": -1.0}, "norm_eps is -1.0"),
    "norm_eps not a number": ({"rms_norm_eps": math.nan}, "norm_eps is nan"),
    "theta": ({"rope_theta": 0}, "rope_theta is 0"),
    "theta as text": ({"rope_theta": "1e4"}, "rope_theta is '1e4'"),
    "activation": ({"hidden_act": "relu"}, "activation 'relu' is not supported here; supported are silu"),
    "flag as text": ({"attention_bias": "no"}, "attention_bias is 'no'; true or false"),
    "eos": ({"eos_token_id": [-1]}, "is -1"),
    "quantised": ({"quantization_config": {"bits": 4}}, "quantization_config is"),
    "head of a fraction": ({"num_attention_heads": 6}, "hidden_size is 32, which 6 heads do not divide; give head_dim"),
    "soft cap": ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0, which family llama"),
    "sliding llama": ({"sliding_window": 8}, "sliding_window is 8, which family llama does not support"),
    "bidirectional": ({"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
    "partial rotation": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    "experts": ({"num_local_experts": 8}, "num_local_experts is 8"),
    "rope kind": (
        {"rope_scaling": {"type": "ntk-by-parts"}},
        "'ntk-by-parts' is not supported in family llama; supported",
    ),
    "mrope": ({"rope_scaling": {"type": "mrope", "mrope_section": [1]}}, "'mrope' is not supported"),
    "rope kind of the wrong type": ({"rope_scaling": {"type": ["linear"]}}, "is not supported"),
    "rope text": ({"rope_scaling": "linear"}, "rope_scaling is 'linear'; an object"),
    "rope twice": (
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
        "say different things",
    ),
    "rope types": ({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}}, "its rope_type 'yarn'"),
    "two bases": (
        {"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        "rope_theta is 500000.0 in the config and 10000.0 in its rotary settings",
    ),
    "no factor": ({"rope_scaling": {"type": "linear"}}, "needs factor"),
    "factor 0": ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor is 0"),
    "factor as text": ({"rope_scaling": {"type": "dynamic", "factor": "2"}}, "factor is '2'"),
    "unread": ({"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 3}}, "does not support beta_fast"),
    "unknown": ({"rope_scaling": {"type": "dynamic", "factor": 2.0, "alpha": 3}}, "does not support alpha"),
    "bands": ({"rope_scaling": {**t.LLAMA3, "high_freq_factor": 0.5}}, "high_freq_factor is 0.5"),
    "context": ({"rope_scaling": {**t.LLAMA3, "original_max_position_embeddings": -4}}, "is -4"),
    "nested": ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "in gemma3_text only"),
    "mistral layers": (
        {"model_type": "mistral", "sliding_window": 8, "layer_types": [t.FULL, t.FULL]},
        "sliding_attention",
    ),
    "window 0": ({"model_type": "mistral", "sliding_window": 0}, "sliding_window is 0"),
    "window as text": ({"model_type": "mistral", "sliding_window": "8"}, "sliding_window is '8'"),
    "qwen without bias": ({"model_type": "qwen2", "attention_bias": True}, "attention_bias is True"),
    "qwen layers": ({"model_type": "qwen2", "layer_types": ["mamba", t.FULL]}, "layer_types needs 2 entries"),
    "layer count": ({"model_type": "qwen3", "layer_types": [t.FULL]}, "layer_types needs 2 entries"),
    "no window": ({"model_type": "qwen3", "layer_types": [t.FULL, t.SLIDING]}, "there is no sliding_window"),
    "gemma 3 attention cap": (
        {"model_type": "gemma3_text", "attn_logit_softcapping": 5.0},
        "attn_logit_softcapping is 5.0",
    ),
    "gemma scale": ({"model_type": "gemma2", "query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0"),
    "gemma activations": ({"model_type": "gemma2", "hidden_act": "silu"}, "activation 'silu' is not supported here"),
    "phi yarn": (
        {"model_type": "phi3", "rope_scaling": {"type": "linear", "factor": 2.0}},
        "supported are none, longrope",
    ),
    "phi factors": (
        {"model_type": "phi3", "rope_scaling": t.LONGROPE},
        "short_factor has 3 values; one for each of the 4",
    ),
    "gemma3 without text": ({"model_type": "gemma3"}, "has a text_config"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_sentence(case: str):
    fields, message = REFUSED[case]
    with pytest.raises(ValueError, match=message) as caught:
        config_from_hf({**LLAMA, **fields})
    assert "\n" not in str(caught.value)


HOSTILE = (None, True, -1, 0, 1, 7, 2**70, -0.5, math.nan, math.inf, "", "x", [], [[]], ["x"], [None], {}, {"x": []})


@pytest.mark.parametrize("name", [*t.FAMILIES, "longrope", "gemma3-new", "yarn-betas"])
def test_a_hostile_value_in_any_field_is_read_or_refused(name: str):
    """Whatever a field holds: a config, or a ValueError; never another error, nor an allocation."""
    fields = ALL[name]
    extra = (
        "architectures",
        "layer_types",
        "rope_scaling",
        "rope_parameters",
        "head_dim",
        "sliding_window",
        "eos_token_id",
    )
    nested = [(outer, key) for outer in ("rope_scaling", "rope_parameters") for key in fields.get(outer) or {}]
    cases = [{key: value} for key in {*fields, *extra} for value in HOSTILE]
    cases += [{outer: {**fields[outer], key: value}} for outer, key in nested for value in HOSTILE]
    for case in cases:
        try:
            hash(config_from_hf({**fields, **case}))
        except ValueError:
            continue


def test_harmless_fields_are_accepted():
    """What training tools leave behind, and fields at the value at which they change nothing."""
    extra = {
        "auto_map": {"AutoModel": "x.Y"},
        "pretraining_tp": 2,
        "attention_dropout": 0.1,
        "use_cache": False,
        "unsloth_fixed": True,
        "torch_dtype": "float16",
    }
    neutral = {
        "quantization_config": None,
        "rope_interleaved": False,
        "sliding_window": None,
        "layer_types": [t.FULL, t.FULL],
    }
    assert config_from_hf({**LLAMA, **extra, **neutral}) == config_from_hf(LLAMA)


UNWRITABLE = {
    "llama with two kinds of bias": ("llama2", {"qkv_bias": True}, "qkv_bias is True"),
    "llama with norms": ("llama2", {"qk_norm": True}, "qk_norm is True"),
    "mistral that alternates": ("mistral", {"windows": (8, None)}, "windows is"),
    "windows that differ": ("qwen3", {"windows": (8, 4)}, "differ"),
    "unknown family": ("llama2", {"family": "mamba"}, "family 'mamba' is not supported"),
    "length": ("dynamic", {"rope_scaling": RopeScaling("dynamic", factor=2.0, length=99)}, "rope_scaling is"),
    "embedding scale": ("llama2", {"embed_scale": 3.0}, "embed_scale is 3.0"),
}


@pytest.mark.parametrize("case", UNWRITABLE)
def test_a_config_that_the_family_cannot_say_is_not_written(case: str):
    base, fields, message = UNWRITABLE[case]
    with pytest.raises(ValueError, match=message):
        config_to_hf(dataclasses.replace(t.tiny(base), **fields))


INVALID = {
    "windows": {"windows": (8,)},
    "rotary_fraction": {"rotary_fraction": 1.5},
    "softcap": {"final_softcap": -1.0},
    "activation": {"activation": "relu"},
    "bos": {"bos_id": -1},
}


@pytest.mark.parametrize("case", INVALID)
def test_a_record_checks_itself(case: str):
    with pytest.raises(ValueError, match=r"is|has"):
        dataclasses.replace(t.tiny("llama2"), **INVALID[case])


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(RopeScaling) if f.name != "kind"])
def test_a_scaling_refuses_a_field_that_it_does_not_read(field: str):
    other = {"short_factor": (1.0,), "long_factor": (1.0,), "truncate": False}.get(field, 7)
    with pytest.raises(ValueError, match=f"'none' does not read {field}"):
        RopeScaling(**{field: other})
