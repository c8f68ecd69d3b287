import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.sampling import argmax, cut, gumbel, log_prob, pick, token_logprobs, warp, warpers
from tests.verify.law import FAILS, HOLDS, ROWS, SEEDS, p_value, rows_of

# Every combination that uses something, one row each.
GRID = [
    {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    for temperature in (0.3, 1.0, 1.7)
    for top_k in (0, 1, 5, 1000)
    for top_p in (1.0, 0.9, 0.3)
    for min_p in (0.0, 0.2, 1.0)
]
VOCAB = 60
run_warp = jax.jit(warp)


def settings_of(rows):
    return warpers(len(rows), **{name: [row[name] for row in rows] for name in rows[0]})


def logits_of(rows, width=2, vocab=VOCAB):
    return jax.random.normal(jax.random.key(0), (rows, width, vocab)) * 3


def reference(logits, temperature, top_k, top_p, min_p, order=("temperature", "top_k", "top_p", "min_p")):
    """Law of one node by sorting, in float64, as transformers' warpers define it."""
    logits = np.asarray(logits, np.float64)

    def softmax(logits):
        weights = np.exp(logits - logits.max())
        return weights / weights.sum()

    for step in order:
        if step == "temperature":
            logits = logits / temperature
        elif step == "top_k" and top_k > 0:
            least = np.sort(logits)[-min(top_k, logits.size)]
            logits = np.where(logits < least, -np.inf, logits)
        elif step == "top_p" and top_p < 1:
            down = np.argsort(-logits)
            p = softmax(logits)[down]
            above = np.cumsum(p) - p
            logits[down[above >= top_p]] = -np.inf
        elif step == "min_p":
            p = softmax(logits)
            logits = np.where(p < min_p * p.max(), -np.inf, logits)
    return softmax(logits)


def test_the_law_is_that_of_the_sorted_reference_for_every_mix_of_rows():
    logits = logits_of(len(GRID))
    law = np.exp(run_warp(logits, settings_of(GRID)))
    wanted = np.array([[reference(node, **row) for node in nodes] for nodes, row in zip(logits, GRID, strict=True)])
    np.testing.assert_array_equal(law > 0, wanted > 0)
    np.testing.assert_allclose(law, wanted, rtol=2e-5, atol=0)


@pytest.mark.parity
def test_the_law_is_that_of_transformers():
    import torch
    from transformers.generation import logits_process as hf

    logits = logits_of(len(GRID))
    log_law = run_warp(logits, settings_of(GRID))
    for row, settings in enumerate(GRID):
        steps = [hf.TemperatureLogitsWarper(settings["temperature"])]
        if settings["top_k"] > 0:
            steps.append(hf.TopKLogitsWarper(settings["top_k"]))
        steps.append(hf.TopPLogitsWarper(settings["top_p"]))
        steps.append(hf.MinPLogitsWarper(settings["min_p"]))
        scores = torch.tensor(np.asarray(logits[row]))
        for step in steps:
            scores = step(None, scores)
        np.testing.assert_allclose(log_law[row], torch.log_softmax(scores, -1), rtol=1e-4, atol=1e-5)


def test_temperature_comes_before_top_p():
    p, settings = np.array([0.5, 0.3, 0.2]), {"temperature": 2.0, "top_k": 0, "top_p": 0.75, "min_p": 0.0}
    kept = np.isfinite(warp(jnp.log(rows_of(p, 1))[:, None], settings_of([settings])))
    assert kept.sum() == 3
    assert (reference(np.log(p), **settings) > 0).sum() == 3
    control = reference(np.log(p), **settings, order=("top_p", "temperature"))
    assert (control > 0).sum() == 2


def test_top_k_keeps_exactly_k_of_distinct_values_down_to_neighbouring_floats():
    values = np.array([1.0], np.float32)
    while values.size < 40:
        values = np.append(values, np.nextafter(values[-1], np.float32(0)))
    values = np.random.default_rng(0).permutation(values)
    counts = range(1, 41)
    law = warp(jnp.broadcast_to(values, (40, 1, 40)), warpers(40, temperature=1.0, top_k=list(counts)))
    for k, row in zip(counts, np.asarray(law[:, 0]), strict=True):
        np.testing.assert_array_equal(np.isfinite(row), values >= np.sort(values)[-k])


@pytest.mark.parametrize("setting", [{"top_k": 2}, {"top_p": 0.5}])
def test_ties_at_a_threshold_are_kept(setting):
    p = [0.4, 0.2, 0.2, 0.1, 0.1]
    law = warp(jnp.log(rows_of(p, 1))[:, None], warpers(1, temperature=1.0, **setting))
    np.testing.assert_allclose(np.exp(law[0, 0]), [0.5, 0.25, 0.25, 0, 0], rtol=1e-6)


def test_the_likeliest_token_always_stays():
    law = run_warp(logits_of(3), warpers(3, temperature=1.0, top_p=[1e-9, 1, 1], top_k=[0, 1, 0], min_p=[0, 0, 1]))
    np.testing.assert_array_equal(np.isfinite(law).sum(-1), np.ones((3, 2)))
    np.testing.assert_allclose(np.max(law, -1), 0, atol=1e-6)


def test_rows_with_top_p_one_keep_the_tail_that_rounding_loses():
    logits = jnp.zeros((2, 1, 1000)).at[:, :, 1:].set(-20.0)
    law = run_warp(logits, warpers(2, temperature=1.0, top_p=[1.0, 0.999]))
    np.testing.assert_array_equal(np.isfinite(law).sum(-1), [[1000], [1]])


def test_banned_tokens_never_come_back():
    logits = logits_of(len(GRID)).at[:, :, ::2].set(-jnp.inf)
    law = run_warp(logits, settings_of(GRID))
    assert np.isneginf(law[:, :, ::2]).all()
    np.testing.assert_allclose(np.exp(law).sum(-1), 1, rtol=1e-5)


def test_greedy_rows_beside_sampled_ones_are_exactly_the_first_argmax():
    logits = logits_of(4).at[:, :, 7].set(50.0).at[:, :, 3].set(50.0)
    law = run_warp(logits, warpers(4, temperature=[0, 1, 0, 2], top_k=3, top_p=0.5))
    wanted = np.where(np.arange(VOCAB) == 3, 0.0, -np.inf)
    for row in (0, 2):
        np.testing.assert_array_equal(law[row], np.broadcast_to(wanted, (2, VOCAB)))


@pytest.mark.parametrize("temperature", [1e-30, 2e-38, 1e30])
def test_extreme_temperatures_stay_finite(temperature):
    law = np.exp(run_warp(logits_of(1), warpers(1, temperature=temperature)))
    np.testing.assert_allclose(law.sum(-1), 1, rtol=1e-5)
    assert (law.max(-1) > 0.99).all() == (temperature < 1)


def test_a_row_is_the_same_whatever_the_others_use():
    logits = logits_of(3)
    settings = warpers(3, temperature=[1.3, 0.7, 0], top_k=[0, 9, 0], top_p=[1, 0.8, 1], min_p=[0, 0.1, 0])
    together = run_warp(logits, settings)
    for row in range(3):
        alone = run_warp(logits[row : row + 1], jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], settings))
        np.testing.assert_array_equal(together[row], alone[0])


def test_a_few_tokens_of_a_law_are_those_of_the_whole():
    logits, settings = logits_of(len(GRID)), settings_of(GRID)
    ids = jnp.broadcast_to(jnp.array([5, 0, 59], jnp.int32), (len(GRID), 2, 3))
    few = log_prob(jnp.take_along_axis(logits, ids, 2), ids, cut(logits, settings), settings.temperature)
    np.testing.assert_array_equal(few, jnp.take_along_axis(warp(logits, settings), ids, 2))


def test_argmax_is_the_first_of_equals():
    values = jax.random.randint(jax.random.key(1), (50, 3, 40), 0, 5).astype(jnp.float32)
    np.testing.assert_array_equal(argmax(values), jnp.argmax(values, -1))
    np.testing.assert_array_equal(argmax(jnp.full((2, 4), -jnp.inf)), [0, 0])
    np.testing.assert_array_equal(argmax(jnp.full((2, 4), jnp.nan)), [0, 0])


@functools.cache
def draws():
    return gumbel(SEEDS, jnp.zeros((ROWS, 1), jnp.int32), 5)[:, 0]


def test_picked_tokens_have_the_law():
    p = np.array([0.5, 0.25, 0.15, 0.1, 0.0])
    tokens = pick(jnp.log(rows_of(p)), draws())
    assert p_value(tokens, p) > HOLDS
    assert p_value(tokens, [0.49, 0.26, 0.15, 0.1, 0.0]) < FAILS
    np.testing.assert_array_equal(tokens, pick(jnp.log(rows_of(p * 7)), draws()))
    control = pick(rows_of(p), draws())
    assert p_value(control, p) < FAILS


def test_logprobs_are_the_models_own_over_the_true_vocabulary():
    logits = logits_of(2).astype(jnp.bfloat16)
    tokens = jnp.array([[3, 49], [0, 7]], jnp.int32)
    found = token_logprobs(logits, tokens, 50)
    wanted = jax.nn.log_softmax(logits[..., :50].astype(jnp.float32))
    np.testing.assert_allclose(found, jnp.take_along_axis(wanted, tokens[..., None], 2)[..., 0], rtol=1e-5)
    assert found.dtype == jnp.float32


def test_logits_of_16_bits_are_warped_in_32():
    logits = logits_of(len(GRID)).astype(jnp.bfloat16)
    law = run_warp(logits, settings_of(GRID))
    assert law.dtype == jnp.float32
    np.testing.assert_array_equal(law, run_warp(logits.astype(jnp.float32), settings_of(GRID)))


def test_settings_can_be_replaced_for_a_draft():
    settings = warpers(1, temperature=1.0)
    warm = dataclasses.replace(settings, temperature=settings.temperature * 2)
    np.testing.assert_allclose(run_warp(logits_of(1), warm), run_warp(logits_of(1), warpers(1, temperature=2.0)))
