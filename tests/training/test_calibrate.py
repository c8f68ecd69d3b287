"""The fitted temperature is the one at which most sampled drafts are accepted."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.training.calibrate import COARSE, fit_temperature, least
from jaxspec.training.draft_data import Batch
from jaxspec.training.draft_loss import say
from tests.decode import tiny
from tests.training import small


@pytest.mark.parametrize("best", [0.3, 0.71, 1.37, 3.9])
def test_the_grid_finds_the_least(best):
    fit = least(lambda heats: 0.2 + np.log(heats / best) ** 2)
    assert fit.temperature == pytest.approx(best, rel=0.03)
    assert fit.before > fit.after


def test_where_nothing_is_better_it_stays_at_one():
    assert least(lambda heats: np.abs(np.log(heats))) == (1.0, 0.0, 0.0)
    assert COARSE[len(COARSE) // 2] == pytest.approx(1.0)


@pytest.mark.parametrize("heat", [0.6, 1.8])
def test_a_target_that_is_the_draft_at_a_temperature_gives_that_temperature(heat):
    config, own = small.draft_of("lm", vocab=tiny.VOCAB)
    context, params = small.context_of(config, own, temperature=9.0), small.trainable(own)
    tokens = np.random.default_rng(0).integers(0, tiny.VOCAB, (4, 24)).astype(np.int32)
    places = np.broadcast_to(np.arange(24, dtype=np.int32), tokens.shape)
    batch = Batch(tokens, places, np.ones(tokens.shape, bool), np.zeros((4, 24, 0), np.int32), np.zeros((4, 24, 0)), {})
    logits = np.asarray(say(config, params, batch, context | {"temperature": jnp.float32(1)}, 1)[0].logits) / heat
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    ids = np.argsort(-log_p, -1).astype(np.int32)
    kept = np.take_along_axis(log_p, ids, -1)
    told = batch._replace(ids=np.asarray(own["output.ids"])[ids], log_p=kept.astype(np.float32))
    fit = fit_temperature(config, params, [told], context)
    assert fit.temperature == pytest.approx(heat, rel=0.03)
    assert 20 * fit.after < fit.before
