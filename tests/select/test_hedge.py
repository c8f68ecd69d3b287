"""Hedge learns from every proposal at hand, also of arms that it never takes; what was not told keeps its weight."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.contracts import Choice, Feedback, Verdict
from jaxspec.select.exp3 import exp3
from jaxspec.select.hedge import NAIVE, counted, hedge, outcomes, rates_of, reweighed
from tests.select import texts
from tests.select.made import signals_of

M, DEPTH = len(texts.ARMS), texts.DEPTH
SOURCE, LOOKAHEAD = np.asarray(texts.ARMS.source), np.asarray(texts.ARMS.lookahead)


def feedback_of(runs, emitted, *, chance=None):
    """Of one row. runs: right drafts by source, None for one that has none at hand; all offer every depth."""
    depth = np.arange(DEPTH)
    runs = [-1 if run is None else run for run in runs]
    known = np.asarray([(depth <= run) & (depth < emitted) for run in runs])[None]
    right = known & (depth[None, None, :] < np.asarray(runs)[None, :, None])
    drawn = np.asarray([0 if run < 0 else DEPTH for run in runs])[None]
    return Feedback(
        jnp.asarray(known),
        jnp.asarray(right),
        jnp.asarray(right if chance is None else np.where(known, chance, 0), jnp.float32),
        jnp.ones(known.shape, jnp.float32),
        jnp.asarray(drawn, jnp.int32),
        jnp.asarray([emitted], jnp.int32),
    )


def signals():
    return signals_of(np.asarray([[0, DEPTH, DEPTH]]))


def reward(source, lookahead, tokens):
    best = max((k + 1) / texts.PRICES.verify[k] for k in range(DEPTH + 1))
    return tokens / (texts.PRICES.verify[lookahead] + texts.PRICES.draft[source, lookahead]) / best


def test_outcomes_are_what_each_arm_would_have_brought():
    """Emitted 3 tokens by lookup's 2 right drafts; nothing was heard of the model."""
    rates = jnp.full((3, DEPTH), 0.5)
    gain, told = outcomes(texts.ARMS, texts.COSTS, signals(), feedback_of([None, 2, None], 3), rates)
    for arm, (source, lookahead) in enumerate(zip(SOURCE, LOOKAHEAD, strict=True)):
        assert told[0, arm] == (source < 2)
        if source < 2:
            expected = 1 + min(2, lookahead) if source else 1
            assert gain[0, arm] == pytest.approx(reward(source, lookahead, expected), rel=1e-5)


def test_beyond_what_was_emitted_a_draft_counts_by_its_rate():
    """Plain decoding emitted 1 token: the first draft was right, of the others nothing is known."""
    rates = jnp.asarray(np.random.default_rng(0).random((3, DEPTH)), jnp.float32)
    gain, _ = outcomes(texts.ARMS, texts.COSTS, signals(), feedback_of([None, 5, None], 1), rates)
    chain = np.concatenate([[1.0], np.cumprod(np.asarray(rates)[1, 1:])])
    for arm in np.flatnonzero(SOURCE == 1):
        tokens = 1 + chain[: LOOKAHEAD[arm]].sum()
        assert gain[0, arm] == pytest.approx(reward(1, LOOKAHEAD[arm], tokens), rel=1e-5)
    missed, _ = outcomes(texts.ARMS, texts.COSTS, signals(), feedback_of([None, 0, None], 1), rates)
    deep = int(np.flatnonzero((SOURCE == 1) & (LOOKAHEAD == DEPTH))[0])
    assert missed[0, deep] == pytest.approx(reward(1, DEPTH, 1), rel=1e-5)  # after a miss nothing is taken


def test_a_draft_counts_by_the_targets_probability_where_that_is_known():
    """A round says of the first draft that 0.4 of all rounds take it; this one did, and the second was a miss."""
    rates = jnp.full((3, DEPTH), 0.5)
    chance = np.zeros((1, 3, DEPTH))
    chance[0, 1, :2] = [0.4, 0.3]
    deep = int(np.flatnonzero((SOURCE == 1) & (LOOKAHEAD == DEPTH))[0])
    for run, tokens in ((1, 1 + 0.4 + 0.3), (0, 1 + 0.4)):  # reached, and taken with its chance
        gain, _ = outcomes(texts.ARMS, texts.COSTS, signals(), feedback_of([None, run, None], 3, chance=chance), rates)
        assert gain[0, deep] == pytest.approx(reward(1, DEPTH, tokens), rel=1e-5)


def test_rates_are_of_what_was_told():
    taken = jnp.zeros((3, DEPTH, 2), jnp.float32)
    np.testing.assert_allclose(rates_of(taken), NAIVE[0] / NAIVE[1])
    for _ in range(300):
        taken = counted(taken, feedback_of([None, 2, None], 3))
    rates = np.asarray(rates_of(taken))
    np.testing.assert_allclose(rates[1, :3], [1, 1, 0], atol=0.03)
    np.testing.assert_allclose(rates[1, 3:], NAIVE[0] / NAIVE[1])
    np.testing.assert_allclose(rates[2], NAIVE[0] / NAIVE[1])


def test_weights_multiply_among_those_that_were_told_of():
    rng = np.random.default_rng(2)
    weights = np.log(rng.dirichlet(np.ones(M)))
    gain, heard = rng.random((1, M)), rng.random((1, M)) < 0.5
    got = np.exp(reweighed(jnp.asarray(weights, jnp.float32), jnp.asarray(gain, jnp.float32), jnp.asarray(heard), 2.0))
    raw = np.exp(weights) * np.exp(2 * gain[0])
    awake = heard[0]
    expected = np.where(awake, raw * np.exp(weights)[awake].sum() / raw[awake].sum(), np.exp(weights))
    np.testing.assert_allclose(got, expected, rtol=1e-4)
    np.testing.assert_array_equal(got[~awake], np.exp(np.float32(weights))[~awake])
    nothing = reweighed(jnp.asarray(weights, jnp.float32), jnp.asarray(gain, jnp.float32), jnp.zeros((1, M), bool), 2.0)
    np.testing.assert_allclose(nothing, weights, rtol=1e-6)


@pytest.mark.parametrize(("maker", "learns"), [(hedge, True), (exp3, False)])
def test_it_learns_from_arms_that_it_never_takes(maker, learns):
    """Plain decoding all along, while lookup's first drafts are right; a bandit has nothing to learn that from."""
    selector = maker(texts.KINDS)
    state = selector.init(1, 3)
    choice = Choice(jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32), told={"arm": jnp.zeros(1, jnp.int32)})
    verdict = Verdict(jnp.zeros(1, jnp.int32), jnp.zeros((1, DEPTH + 1), jnp.int32), jnp.ones(1, jnp.int32), None)
    before, update = np.exp(state.weights), jax.jit(selector.update)
    for _ in range(20):
        state = update(texts.PARAMS, state, signals(), choice, None, verdict, feedback_of([None, 3, None], 1))
    after = np.exp(np.asarray(state.weights))
    lookup, model = SOURCE == 1, SOURCE == 2
    if learns:
        assert after[lookup].sum() > 1.1 * before[lookup].sum()
        assert after[lookup].max() > 2 * before[lookup].max()
        assert after[0] < 0.2 * before[0]
        assert after[model].sum() == pytest.approx(before[model].sum(), rel=0.05)
    else:
        np.testing.assert_allclose(
            after[lookup] / after[lookup].sum(), before[lookup] / before[lookup].sum(), rtol=1e-3
        )
        assert after[lookup].sum() <= before[lookup].sum() * 1.05


def test_paid_sources_are_tried_now_and_then():
    hopeless = texts.text(texts.LOOKUP_IS_BEST)
    ran = texts.played(hedge(texts.KINDS), hopeless).text(0).source[300:]
    assert 0.01 < np.mean(ran == 2) < 0.15
    never = texts.played(hedge(texts.KINDS, curious=0.0, share=0.0), hopeless).text(0).source[300:]
    assert np.mean(never == 2) < 0.5 * np.mean(ran == 2)


def test_it_finds_the_best_arm_and_its_regret_flattens():
    selector, process = hedge(texts.KINDS), texts.text()
    played, deaf = (texts.played(each, process) for each in (selector, texts.deaf(selector)))
    assert texts.share_of_good(played) > 0.9
    assert texts.share_of_good(deaf) < 0.5  # negative control
    regret, linear = texts.regret_in_quarters(played), texts.regret_in_quarters(deaf)
    assert regret[2:].sum() < 0.5 * regret[:2].sum()
    assert linear[2:].sum() > 0.8 * linear[:2].sum()
