"""However a text is cut into windows, the decoder gives what one pass over it gives."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import tests.models.tiny as t
from jaxspec.models import Decoder, bind, language_model

ROWS = 3
NAMES = (
    "llama3",
    "mistral",
    "qwen2-sliding",
    "qwen3",
    "gemma2",
    "gemma3",
    "dynamic",
    "longrope",
)  # the last is a Phi-3
TOLERANCE = 3e-5


def both(name: str) -> tuple:
    """Model, parameters, tokens of three rows, and the logits of one pass."""
    model, params = t.model_of(name)
    tokens = t.random_tokens(model.config, rows=ROWS)
    return model, params, tokens, np.asarray(t.whole_pass(model, params, tokens))


def close(got, expected) -> None:
    np.testing.assert_allclose(np.asarray(got), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_windows_with_rejections_equal_one_pass(name: str):
    """Every row takes 0 to 8 tokens a window and has its own length; rings wrap twice (P19, P21)."""
    model, params, tokens, expected = both(name)
    close(t.feed_with_rejections(model, params, tokens, t.empty_cache(model, ROWS)), expected)


def test_keeping_rejected_tokens_is_noticed():
    """Negative control: a commit of the whole window, wrong drafts included."""
    model, params, tokens, expected = both("mistral")
    got = t.feed_with_rejections(model, params, tokens[:, :24], t.empty_cache(model, ROWS), commit_all=True)
    assert np.abs(got - expected[:, :24]).max() > 0.1


def test_a_ring_with_too_few_slots_is_noticed():
    """Negative control: with the window's slots alone, rejected tokens overwrite what the window still needs."""
    model, params, tokens, expected = both("mistral")
    cache = t.empty_cache(model, ROWS)
    assert t.WINDOW + t.HEADROOM in cache.rings
    small = dataclasses.replace(cache, rings=tuple(None if ring is None else t.WINDOW for ring in cache.rings))
    got = t.feed_with_rejections(model, params, tokens, small)
    assert np.abs(got - expected).max() > 0.1


def test_widths_equal_one_pass():
    """Windows that are really narrower, over a ring and a global layer."""
    model, params, tokens, expected = both("gemma3")
    close(t.feed(model, params, tokens, (1, 3, 8)), expected)


def test_a_carried_window_equals_a_committed_one():
    """The second window reaches back through the first, which nobody committed, into a ring and a global layer."""
    model, params, tokens, expected = both("gemma3")
    close(t.feed_carried(model, params, tokens, committed=17, widths=(3, 4)), expected[:, 17:24])


def test_layers_in_two_parts_equal_the_whole():
    """The first layers alone, then the others on their hidden states; the windows join to the whole one."""
    model, params, tokens, _ = both("gemma3")
    width = tokens.shape[1]
    positions = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), tokens.shape)
    mask, cache = t.chain_mask(ROWS, width), t.empty_cache(model, ROWS)
    last = model.config.num_layers

    @jax.jit
    def run(params, tokens):
        whole = model.forward(params, tokens, positions, mask, cache)
        lower = model.forward(params, tokens, positions, mask, cache, layers=(0, 1), logits=False)
        upper = model.forward(params, tokens, positions, mask, cache, layers=(1, last), hidden=lower.hidden)
        assert lower.logits is None
        return whole, lower, upper

    whole, lower, upper = run(params, tokens)
    close(upper.logits, whole.logits)
    close(upper.hidden, whole.hidden)
    for got, expected in zip((*lower.window.k, *upper.window.k), whole.window.k, strict=True):
        close(got, expected)


def test_the_head_reads_the_hidden_states_of_an_early_layer():
    """Early exit: no layer at all, then the final norm and output matrix."""
    model, params = t.model_of("llama3")
    tokens = jnp.asarray(t.random_tokens(model.config, rows=ROWS, length=4))
    positions = jnp.broadcast_to(jnp.arange(4, dtype=jnp.int32), (ROWS, 4))
    mask, cache = t.chain_mask(ROWS, 4), t.empty_cache(model, ROWS)

    @jax.jit
    def run(params, tokens):
        early = model.forward(params, tokens, positions, mask, cache, layers=(0, 1))
        return early, model.forward(params, tokens, positions, mask, cache, layers=(1, 1), hidden=early.hidden)

    early, again = run(params, tokens)
    close(again.logits, early.logits)


def test_rows_do_not_see_each_other():
    """Bit for bit: other tokens in the other rows, other counts (P21)."""
    model, params, tokens, _ = both("qwen3")
    other = np.concatenate([tokens[:1], (tokens[1:] + 7) % model.config.vocab_size])
    logits = []
    for text, second in ((tokens, 8), (other, 3)):
        cache = t.empty_cache(model, ROWS)
        for at in (0, 8, 16):
            count = jnp.asarray([8, second, 0], jnp.int32)
            out, cache = t.window_pass(model, params, text[:, at : at + 8], cache, count)
        logits.append(np.asarray(out))
    np.testing.assert_array_equal(logits[0][0], logits[1][0])
    assert np.abs(logits[0][1:] - logits[1][1:]).min(axis=-1).max() > 0


def test_a_bound_module_is_the_module():
    """`bind` names parameters as Hugging Face does, and the pure function equals the module's own call."""
    config = t.tiny("gemma3")
    module = nnx.jit(lambda: Decoder(config, rngs=nnx.Rngs(3)))()
    model, params = bind(module)
    assert {name: array.shape for name, array in params.items()} == {
        name: leaf.shape for name, leaf in t.parameter_shapes(config).items()
    }
    assert "layers.1.self_attn.q_norm.weight" in params
    assert not any(name.startswith("model.") for name in params)
    tokens = jnp.asarray(t.random_tokens(config, rows=1, length=5))
    positions = jnp.arange(5, dtype=jnp.int32)[None]
    mask, cache = t.chain_mask(1, 5), t.empty_cache(model, 1)

    @jax.jit
    def run(params, tokens):
        hidden, _ = module(module.embed(tokens), positions, mask, cache, None, 0, config.num_layers)
        return module.head(hidden), model.forward(params, tokens, positions, mask, cache).logits

    own, pure = run(params, tokens)
    assert np.abs(np.asarray(own)).max() > 1e-3
    np.testing.assert_allclose(np.asarray(pure), np.asarray(own), rtol=0, atol=1e-6)


def test_one_config_is_one_model():
    """Equal configs give the same object, so that nothing compiles twice; another value gives another."""
    config = t.tiny("llama3")
    twin = dataclasses.replace(config, eos_ids=config.eos_ids)
    assert twin == config
    assert hash(twin) == hash(config)
    assert language_model(twin) is language_model(config)
    assert language_model(dataclasses.replace(config, norm_eps=1e-3)) is not language_model(config)


def test_bfloat16_parameters_and_cache():
    """Logits are float32, everything else keeps the parameters' dtype, and they stay near those of float32."""
    model, params = t.model_of("gemma2")
    short = {name: array.astype(jnp.bfloat16) for name, array in params.items()}
    tokens, count = t.random_tokens(model.config, rows=ROWS, length=8), jnp.full(ROWS, 8, jnp.int32)
    cache = t.empty_cache(model, ROWS, dtype=jnp.bfloat16)
    logits, cache = t.window_pass(model, short, tokens, cache, count)
    exact = {name: array.astype(jnp.float32) for name, array in short.items()}
    expected, _ = t.window_pass(model, exact, tokens, t.empty_cache(model, ROWS), count)
    assert logits.dtype == jnp.float32
    assert cache.layers[0].k.dtype == jnp.bfloat16
    assert np.abs(np.asarray(logits) - np.asarray(expected)).mean() < 0.02
