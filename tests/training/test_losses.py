"""Losses are what their names say, on models so small that the same can be worked out another way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxspec.models import Decoder, ModelConfig, bind
from jaxspec.training import divergence, mean_over, next_token

TWO = ModelConfig("llama", 24, 16, 24, 2, 2, 1, 8, 64, tie_embeddings=True)
ONE = ModelConfig("llama", 24, 16, 24, 1, 2, 1, 8, 64, tie_embeddings=True)
TOKENS = np.random.default_rng(0).integers(0, 24, (2, 9)).astype(np.int32)


def sharpened(config: ModelConfig, seed: int):
    """Embeddings well apart, so that the laws are far from uniform."""
    model, params = bind(Decoder(config, rngs=nnx.Rngs(seed)))
    return model, params | {"embed_tokens.weight": params["embed_tokens.weight"] * 50}


def surprises(loss, params, rows: np.ndarray) -> np.ndarray:
    return np.asarray([float(loss(params, row[None], ())) for row in rows])


@pytest.fixture(scope="module")
def two():
    return sharpened(TWO, 0)


@pytest.fixture(scope="module")
def loss_of_two(two):
    return jax.jit(next_token(two[0]))


def test_next_token_is_the_mean_surprise_of_decoding_token_by_token(two, loss_of_two):
    model, params = two
    cache = model.init_cache(2, 16, headroom=1)
    forward = jax.jit(lambda tokens, at, cache: model.forward(params, tokens, at, jnp.ones((2, 1, 1), bool), cache))
    surprise = []
    for at in range(8):
        out = forward(jnp.asarray(TOKENS[:, at : at + 1]), jnp.full((2, 1), at, jnp.int32), cache)
        cache = model.commit(cache, out.window, None, jnp.ones(2, jnp.int32))
        law = np.asarray(jax.nn.log_softmax(out.logits[:, 0]))
        surprise.append(-law[np.arange(2), TOKENS[:, at + 1]])
    assert float(loss_of_two(params, TOKENS, ())) == pytest.approx(float(np.mean(surprise)), abs=1e-4)


def test_a_model_that_knows_nothing_has_the_loss_of_a_guess(two, loss_of_two):
    blank = {name: jnp.zeros_like(leaf) for name, leaf in two[1].items()}
    assert float(loss_of_two(blank, TOKENS, ())) == pytest.approx(np.log(24), abs=1e-5)
    assert float(loss_of_two(two[1], TOKENS, ())) > np.log(24) + 0.1


def test_an_exit_adds_the_loss_of_the_first_layers_alone(two, loss_of_two):
    model, params = two
    first = {name: leaf for name, leaf in params.items() if not name.startswith("layers.1.")}
    alone = jax.jit(next_token(bind(Decoder(ONE, rngs=nnx.Rngs(0)))[0]))(first, TOKENS, ())
    both = jax.jit(next_token(model, exits=((1, 0.5),)))(params, TOKENS, ())
    assert float(both) == pytest.approx(float(loss_of_two(params, TOKENS, ())) + 0.5 * float(alone), rel=1e-5)


def test_a_draft_diverges_from_its_target_unless_it_is_the_target(two):
    model, params = two
    draft, other = sharpened(ONE, 1)
    measure = jax.jit(divergence(draft, model))
    assert float(jax.jit(divergence(model, model))(params, TOKENS, params)) == pytest.approx(0, abs=1e-5)
    assert float(measure(other, TOKENS, params)) > 0.1


def test_divergence_is_cross_entropy_less_entropy(two):
    """KL(p || q) = H(p, q) - H(p), with the laws of the last position from next-token losses of every continuation."""
    model, params = two
    draft, other = sharpened(ONE, 1)
    ends = np.repeat(TOKENS[:1, :2], 24, axis=0)
    ends[:, 1] = np.arange(24)
    log_p, log_q = (surprises(jax.jit(next_token(m)), w, ends) for m, w in ((model, params), (draft, other)))
    expected = np.sum(np.exp(-log_p) * (log_q - log_p))
    assert float(jax.jit(divergence(draft, model))(other, ends[:1], params)) == pytest.approx(expected, abs=1e-4)


def test_mean_over_is_the_mean_of_the_batches(two, loss_of_two):
    batches = [TOKENS, TOKENS[::-1] * 0]
    each = [float(loss_of_two(two[1], batch, ())) for batch in batches]
    assert mean_over(next_token(two[0]), two[1], batches) == pytest.approx(np.mean(each), rel=1e-6)
