"""The decoder gives transformers' logits at every position: every family and scaling, in one pass and in windows."""

import jax.numpy as jnp
import numpy as np
import pytest

import tests.models.reference as ref
import tests.models.tiny as t
from jaxspec.models import config_from_hf, config_to_hf, for_length, language_model
from jaxspec.models.rope import frequencies

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

TOLERANCE = 1e-4
PLAIN = t.FAMILIES | t.SCALINGS


def close(ours, theirs) -> None:
    np.testing.assert_allclose(np.asarray(ours), theirs, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", PLAIN)
def test_one_pass_and_windows(name: str):
    """Widths 1, 3, 8, 2; the text is five times the sliding window and wraps the rings twice."""
    model, params = t.model_of(name)
    tokens = t.random_tokens(model.config)
    theirs = ref.logits(ref.transformers_model(PLAIN[name], params), tokens)
    close(t.whole_pass(model, params, tokens), theirs)
    close(t.feed(model, params, tokens, (1, 3, 8, 2)), theirs)


@pytest.mark.parametrize("name", ["llama2", "qwen3", "gemma2", "gemma3", "phi3"])
def test_transformers_own_windows(name: str):
    """The reference's cached windows, at the same widths."""
    model, params = t.model_of(name)
    tokens = t.random_tokens(model.config, rows=1)
    theirs = ref.logits(ref.transformers_model(PLAIN[name], params), tokens, (1, 3, 8, 2))
    close(t.whole_pass(model, params, tokens), theirs)


@pytest.mark.parametrize("name", ["mistral", "qwen2-sliding", "gemma3"])
def test_carried_window(name: str):
    """Tokens that attend to a window that is not committed yet."""
    model, params = t.model_of(name)
    tokens = t.random_tokens(model.config)
    theirs = ref.logits(ref.transformers_model(PLAIN[name], params), tokens)
    close(t.feed_carried(model, params, tokens, committed=17, widths=(3, 4)), theirs[:, 17:24])


@pytest.mark.parametrize("name", t.LENGTH_SCALINGS)
def test_within_the_trained_context(name: str):
    """Nothing depends on the length there: one pass, windows and transformers agree."""
    model, params = t.model_of(name)
    tokens = t.random_tokens(model.config, length=t.TRAINED)
    theirs = ref.logits(ref.transformers_model(t.LENGTH_SCALINGS[name], params), tokens)
    close(t.whole_pass(model, params, tokens), theirs)
    close(t.feed(model, params, tokens, (1, 3, 8, 2)), theirs)


@pytest.mark.parametrize("name", t.LENGTH_SCALINGS)
def test_beyond_the_trained_context_as_token_by_token(name: str):
    """By default each token's own position counts: one pass and windows give what transformers gives token by token."""
    model, params = t.model_of(name)
    tokens = t.random_tokens(model.config)
    reference = ref.transformers_model(t.LENGTH_SCALINGS[name], params)
    theirs = ref.logits(reference, tokens, (1,))
    close(t.whole_pass(model, params, tokens), theirs)
    close(t.feed(model, params, tokens, (1, 3, 8, 2)), theirs)
    once = ref.logits(ref.transformers_model(t.LENGTH_SCALINGS[name], params), tokens)
    assert np.abs(once - theirs).max() > 0.01, "transformers' one pass differs, so the choice matters"


@pytest.mark.parametrize("name", t.LENGTH_SCALINGS)
def test_beyond_the_trained_context_with_the_length_fixed(name: str):
    """`for_length` gives transformers' one pass over that many tokens, in one pass and in windows."""
    config, params = for_length(t.tiny(name), t.LENGTH), t.random_params(t.tiny(name))
    model, tokens = language_model(config), t.random_tokens(config)
    theirs = ref.logits(ref.transformers_model(t.LENGTH_SCALINGS[name], params), tokens)
    close(t.whole_pass(model, params, tokens), theirs)
    close(t.feed(model, params, tokens, (1, 3, 8, 2)), theirs)


@pytest.mark.parametrize("name", t.FAMILIES | t.SCALINGS | t.LENGTH_SCALINGS)
def test_configs_are_read_and_written_as_transformers_does(name: str):
    """What transformers saves, in full or less its defaults, reads as the same model; and so does what we write."""
    fields = (t.FAMILIES | t.SCALINGS | t.LENGTH_SCALINGS)[name]
    config = config_from_hf(fields)
    theirs = ref.transformers_config(fields)
    assert config_from_hf(theirs.to_dict()) == config
    assert config_from_hf(theirs.to_diff_dict()) == config
    params, tokens = t.random_params(config), t.random_tokens(config, rows=1, length=12)
    written = ref.logits(ref.transformers_model(config_to_hf(config), params), tokens)
    close(written, ref.logits(ref.transformers_model(fields, params), tokens))


HARMLESS = {
    # training, generation, housekeeping
    *(
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "chunk_size_feed_forward",
        "dtype",
        "embd_pdrop",
        "id2label",
    ),
    *(
        "initializer_range",
        "is_encoder_decoder",
        "label2id",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
    ),
    *("problem_type", "resid_pdrop", "return_dict", "transformers_version", "use_cache"),
    # a parallel layout of the same products
    "pretraining_tp",
    # nothing reads it while layer_types is there
    *("max_window_layers", "sliding_window_pattern", "_sliding_window_pattern"),
}
"""Fields of transformers' configs that change no logit."""


@pytest.mark.parametrize("name", ["llama2", "mistral", "qwen2-sliding", "qwen3", "gemma2", "gemma3", "longrope"])
def test_every_field_of_transformers_is_read_or_refused(name: str):
    """Another value gives another config or an error: a field that nobody reads is a bug found twice elsewhere."""
    saved = ref.transformers_config((t.FAMILIES | t.LENGTH_SCALINGS)[name]).to_dict()
    config, unread = config_from_hf(saved), []
    for field in saved.keys() - HARMLESS:
        for value in others(saved[field]):
            try:
                if config_from_hf({**saved, field: value}) == config:
                    unread.append((field, value))
            except ValueError:
                continue
    assert not unread


def others(value: object) -> list:
    """Values of the same kind that mean something else."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value * 2]
    if isinstance(value, dict):
        return [{**value, key: inner} for key in value for inner in others(value[key])]
    if isinstance(value, list):
        return [value[::-1] if value[::-1] != value else [*value, *value]]
    return [True] if value is None else ["relu"]


def test_defaults_are_those_of_transformers():
    """A config.json that leaves everything out but the sizes."""
    from transformers import AutoConfig

    for family in {fields["model_type"] for fields in t.FAMILIES.values()}:
        theirs = AutoConfig.for_model(family).to_dict()
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        left = {"model_type": family} | {size: theirs[size] for size in sizes}
        assert config_from_hf(left) == config_from_hf(theirs), family
    theirs = AutoConfig.for_model("gemma3").to_dict()
    assert config_from_hf(theirs) == config_from_hf({"model_type": "gemma3", "text_config": {}})


REAL = {
    "llama-3.1": {
        "model_type": "llama",
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {**t.LLAMA3, "original_max_position_embeddings": 8192},
    },
    "qwen2.5-yarn": {
        "model_type": "qwen2",
        "head_dim": 128,
        "rope_theta": 1e6,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    },
    "phi-4-mini": {
        "model_type": "phi3",
        "hidden_size": 3072,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "partial_rotary_factor": 0.75,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0 + 0.01 * i for i in range(48)],
            "long_factor": [1.0 + i for i in range(48)],
        },
    },
    "smollm2": {"model_type": "llama", "head_dim": 64, "rope_theta": 100000},
    "linear": {"model_type": "llama", "head_dim": 64, "rope_scaling": {"type": "linear", "factor": 8.0}},
}


@pytest.mark.parametrize("name", REAL)
def test_frequencies_at_real_sizes(name: str):
    """Within two float32 steps of modeling_rope_utils; the attention factor to 1e-12."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    fields = {**t.SIZES, **REAL[name]}
    config, theirs = config_from_hf(fields), ref.transformers_config(fields)
    ours, factor = frequencies(config, jnp.zeros((1, 1), jnp.int32), local=False)
    kind = theirs.rope_parameters["rope_type"]
    if kind == "default":
        theta = theirs.rope_parameters["rope_theta"]
        expected, scale = 1.0 / theta ** (np.arange(0, config.head_dim, 2) / config.head_dim), 1.0
    else:
        inverse, scale = ROPE_INIT_FUNCTIONS[kind](theirs, "cpu")
        expected = inverse.numpy()
    np.testing.assert_allclose(np.asarray(ours).reshape(-1), expected, rtol=2.5e-7)
    assert factor == pytest.approx(scale, rel=1e-12)


@pytest.mark.parametrize("name", ["llama3", "qwen2", "qwen3", "gemma2", "gemma3", "phi3"])
def test_bfloat16_is_as_close_to_float32_as_transformers_is(name: str):
    """Both round differently; ours may be no further from the float32 logits than 1.3 times theirs, on average."""
    model, params = t.model_of(name)
    tokens = t.random_tokens(model.config)
    exact = np.asarray(
        t.whole_pass(model, {k: v.astype(jnp.bfloat16).astype(jnp.float32) for k, v in params.items()}, tokens)
    )
    short = {k: v.astype(jnp.bfloat16) for k, v in params.items()}
    theirs = ref.logits(ref.transformers_model(PLAIN[name], params, bfloat16=True), tokens)
    ours = np.asarray(t.whole_pass(model, short, tokens))
    cached = t.feed(model, short, tokens, (3, 8), t.empty_cache(model, 2, dtype=jnp.bfloat16))
    error = np.abs(theirs - exact).mean()
    print(name, error, np.abs(ours - exact).mean(), np.abs(cached - exact).mean(), np.abs(ours - theirs).mean())
    assert np.abs(ours - exact).mean() <= 1.3 * error
    assert np.abs(cached - exact).mean() <= 1.3 * error
