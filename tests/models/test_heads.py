"""Draft heads: their configs, how each begins, and a reduced vocabulary's way into the target's."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.models import ModelConfig
from jaxspec.models.heads import (
    DraftConfig,
    bind_head,
    draft_logits,
    head_shapes,
    init_head,
    inverse_of,
    output_logits,
    spread,
)

BODY = ModelConfig("llama", 20, 8, 12, 1, 2, 1, 4, 64)
OWN = {"own_output": True, "own_embedding": True}


def hidden(size: int = 8) -> jax.Array:
    return jnp.asarray(np.random.default_rng(5).standard_normal((size, 2, 3)), jnp.float32)


@pytest.mark.parametrize("count", [1, 7, 20])
def test_spreading_puts_each_logit_at_its_token(count):
    rng = np.random.default_rng(count)
    ids = np.sort(rng.choice(20, count, replace=False)).astype(np.int32)
    logits = rng.standard_normal((2, 3, count)).astype(np.float32)
    inverse = inverse_of(jnp.asarray(ids), 20)
    assert inverse.dtype == jnp.int32
    wide = np.asarray(spread(jnp.asarray(logits), inverse))
    assert np.array_equal(wide[..., ids], logits)
    others = np.setdiff1d(np.arange(20), ids)
    assert np.all(np.isneginf(wide[..., others]))
    assert np.array_equal(np.asarray(inverse)[ids], np.arange(count))
    assert np.all(np.asarray(inverse)[others] == count)
    # a law over the draft's own tokens is the same law over the target's, with nothing elsewhere
    law = np.asarray(jax.nn.softmax(jnp.asarray(wide), -1))
    np.testing.assert_allclose(law[..., ids], np.asarray(jax.nn.softmax(jnp.asarray(logits), -1)), rtol=1e-6)
    assert np.all(law[..., others] == 0)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"kind": "tree"}, "draft kind 'tree' is unknown; choose medusa, feature, lm, exit"),
        ({"layout": "eagle2"}, "feature layout 'eagle2' is unknown; choose eagle3 or eagle"),
        ({"vocab": 0}, "draft vocab is 0; a whole number from 1"),
        ({"vocab": 21}, "a draft vocabulary of 21 is larger than the target's 20"),
        ({"heads": 2.0}, "draft heads is 2.0; a whole number"),
        ({"heads": 65}, "draft heads is 65; a whole number from 1 to 64"),
        ({"blocks": 0}, "draft blocks is 0"),
        ({"rank": True}, "draft rank is True"),
        ({"taps": (3, 2)}, r"taps are \(3, 2\); give numbers of layers, 1 or more, ascending"),
        ({"taps": (2, 2)}, "ascending"),
        ({"taps": (0, 2)}, "1 or more"),
        ({"kind": "feature"}, r"taps of a feature head of layout eagle3 are \(\); give one or more"),
        ({"kind": "feature", "layout": "eagle", "taps": (1, 2)}, "give one tap, the target's number of layers"),
        ({"kind": "feature", "taps": (1,), "target_size": 0}, "target_size is 0; a whole number"),
        ({"kind": "feature", "taps": (1,), "target_size": 16}, "of another width than its target's has layout eagle3"),
        ({"kind": "feature", "taps": (1,), "target_size": 16, **OWN, "layout": "eagle"}, "has layout eagle3"),
    ],
)
def test_configs_that_mean_nothing_are_refused(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        DraftConfig(**{"kind": "medusa", "body": BODY, "vocab": 20, **fields})


def test_medusa_heads_and_exits_begin_as_the_targets_own_last_steps():
    x = hidden()
    medusa = DraftConfig("medusa", BODY, 20, heads=3, blocks=2)
    params = init_head(medusa, seed=1)
    said = bind_head(medusa)(params)(x)
    normed = np.asarray(x) / np.sqrt(np.mean(np.square(x), 0) + BODY.norm_eps)
    assert len(said) == 3
    for each in said:
        np.testing.assert_allclose(each, normed, atol=1e-5)
    leave = DraftConfig("exit", BODY, 20, rank=3)
    np.testing.assert_allclose(bind_head(leave)(init_head(leave, seed=1))(x), normed, atol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        DraftConfig("medusa", BODY, 20, heads=2),
        DraftConfig("exit", BODY, 20, rank=3),
        DraftConfig("feature", BODY, 20, taps=(1, 2)),
        DraftConfig("feature", BODY, 20, taps=(2,), layout="eagle"),
    ],
)
def test_shapes_are_those_of_what_is_made(config):
    shapes, params = head_shapes(config), init_head(config, seed=0)
    assert {n: s.shape for n, s in shapes.items()} == {n: p.shape for n, p in params.items()}
    assert all(leaf.dtype == jnp.bfloat16 for leaf in head_shapes(config, jnp.bfloat16).values())
    again = init_head(config, seed=0)
    assert all(np.array_equal(params[name], again[name]) for name in params)


def test_a_feature_layer_has_what_its_layout_and_its_flags_say():
    three, one = (
        DraftConfig("feature", BODY, 20, taps=(1, 2)),
        DraftConfig("feature", BODY, 20, taps=(2,), layout="eagle"),
    )
    assert head_shapes(three)["fc.weight"].shape == (8, 16)
    assert head_shapes(one)["fc.weight"].shape == (8, 16)
    assert ("fc.bias" in head_shapes(three), "fc.bias" in head_shapes(one)) == (False, True)
    for config, there in ((three, True), (one, False)):
        assert ("fc.bias" in head_shapes(dataclasses.replace(config, fc_bias=there))) == there
    norms = {"hidden_norm.weight", "input_layernorm.weight"}
    assert norms <= set(head_shapes(three))
    assert not norms & set(head_shapes(one))
    assert head_shapes(three)["self_attn.q_proj.weight"].shape == (8, 16)
    assert head_shapes(one)["self_attn.q_proj.weight"].shape == (8, 8)
    other = dataclasses.replace(three, target_size=10, **OWN)
    assert (three.feature_size, other.feature_size) == (8, 10)
    assert head_shapes(other)["fc.weight"].shape == (8, 20)
    biased = dataclasses.replace(three, body=dataclasses.replace(BODY, qkv_bias=True, qk_norm=True, mlp_bias=True))
    more = {"self_attn.k_proj.bias", "self_attn.q_norm.weight", "mlp.down_proj.bias"}
    assert more <= set(head_shapes(biased))


def test_where_a_feature_layers_residual_stream_begins():
    config = DraftConfig("feature", BODY, 20, taps=(1,))
    params = init_head(config, seed=2)
    params["hidden_norm.weight"] = params["hidden_norm.weight"] * 3
    feature, embedded = hidden(), hidden() + 1
    plain, read = bind_head(config)(params).enter(feature, embedded)
    normed, same = bind_head(dataclasses.replace(config, norm_before_residual=True))(params).enter(feature, embedded)
    assert np.array_equal(plain, feature)
    assert np.array_equal(normed, read[8:])  # after the embedding's half
    assert np.array_equal(read, same)
    scaled = 3 * np.asarray(feature) / np.sqrt(np.mean(np.square(feature), 0) + BODY.norm_eps)
    np.testing.assert_allclose(normed, scaled, atol=1e-5)


def test_logits_are_divided_by_the_fitted_temperature():
    config, x = DraftConfig("medusa", BODY, 6, heads=2, own_output=True), hidden()
    weights = [jnp.asarray(np.random.default_rng(i).standard_normal((6, 8)), jnp.float32) for i in range(2)]
    own = {f"output.{i}.weight": w for i, w in enumerate(weights)} | {"temperature": jnp.float32(0.5)}
    for head, weight in enumerate(weights):
        plain = np.einsum("od,dbt->bto", weight, x)
        np.testing.assert_allclose(draft_logits(config, own, x, head=head), 2 * plain, atol=1e-5)
    capped = dataclasses.replace(config, body=dataclasses.replace(BODY, final_softcap=2.0))
    logits = output_logits(capped, weights[0], x.astype(jnp.bfloat16).astype(jnp.float32) * 100)
    assert logits.dtype == jnp.float32
    assert np.abs(logits).max() <= 2.0
