"""Discounted UCB: its sums and index are the paper's, and it finds what is best; without feedback it does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.contracts import Choice, Verdict
from jaxspec.select.ucb import UNTRIED, ucb, upper
from tests.select import texts
from tests.select.made import signals_of

M = len(texts.ARMS)


def test_the_index_is_the_papers():
    rng = np.random.default_rng(0)
    count, total = rng.random(M).astype(np.float32) * 20, rng.random(M).astype(np.float32) * 5
    count[3] = 0
    got = np.asarray(upper(jnp.asarray(count), jnp.asarray(total), 0.3))
    for arm in range(M):
        expected = UNTRIED if arm == 3 else total[arm] / count[arm] + 0.3 * np.sqrt(np.log(count.sum()) / count[arm])
        assert got[arm] == pytest.approx(expected, rel=1e-5)


def test_sums_fade_by_every_round_of_every_row():
    selector, rng = ucb(texts.KINDS, keep=0.9), np.random.default_rng(1)
    state, count, total = selector.init(3, 3), np.zeros(M), np.zeros(M)
    update = jax.jit(selector.update)
    for _ in range(5):
        arm, tokens = rng.integers(0, M, 3), rng.integers(0, 3, 3)
        active = rng.random(3) < 0.7
        source, lookahead = (np.asarray(each)[arm] for each in (texts.ARMS.source, texts.ARMS.lookahead))
        choice = Choice(jnp.asarray(source, jnp.int32), jnp.asarray(lookahead, jnp.int32))
        verdict = Verdict(jnp.zeros(3, jnp.int32), jnp.zeros((3, 9), jnp.int32), jnp.asarray(tokens, jnp.int32), None)
        signals = signals_of(np.full((3, 3), 8), active=active)
        state = update(texts.PARAMS, state, signals, choice, None, verdict, None)
        ran = active & (tokens > 0)
        cost = texts.PRICES.verify[lookahead] + texts.PRICES.draft[source, lookahead]
        best = max((k + 1) / (texts.PRICES.verify[k] + texts.PRICES.draft[1, k]) for k in range(9))
        count, total = count * 0.9 ** ran.sum(), total * 0.9 ** ran.sum()
        np.add.at(count, arm[ran], 1)
        np.add.at(total, arm[ran], (tokens / cost / best)[ran])
    np.testing.assert_allclose(state.plays, count, rtol=1e-4)
    np.testing.assert_allclose(state.total, total, rtol=1e-4, atol=1e-6)


def test_every_arm_is_tried_once_first():
    played = texts.played(ucb(texts.KINDS), texts.text())
    series = played.text(0)
    first = list(zip(series.source[:M].tolist(), series.lookahead[:M].tolist(), strict=True))
    assert sorted(first) == sorted(zip(texts.ARMS.source, texts.ARMS.lookahead, strict=True))


def test_it_finds_the_best_arm_and_its_regret_flattens():
    process = texts.text()
    played, deaf = (texts.played(each, process) for each in (ucb(texts.KINDS), texts.deaf(ucb(texts.KINDS))))
    assert texts.share_of_good(played, within=0.1) > 0.8
    assert texts.share_of_good(deaf, within=0.1) < 0.3  # negative control
    regret, linear = texts.regret_in_quarters(played), texts.regret_in_quarters(deaf)
    assert regret.sum() < 0.2 * linear.sum()
    assert regret[2:].sum() < 0.8 * regret[:2].sum()
    assert linear[2:].sum() > 0.9 * linear[:2].sum()
