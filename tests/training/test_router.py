"""What a router is trained on is what the records tell; trained, it predicts better than who has seen nothing."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.bench.prices import curve_prices
from jaxspec.bench.record import Pool, Record
from jaxspec.bench.replay import replay
from jaxspec.contracts import FREE, MODEL
from jaxspec.sampling.confidence import ODDS, odds
from jaxspec.select import SelectorParams
from jaxspec.select.cost import CostTable, guess
from jaxspec.select.goodput import Prior
from jaxspec.select.router import naive_net, router
from jaxspec.select.trained import RECORD, read_trained
from jaxspec.training.card import CARD
from jaxspec.training.router import Options, hold_out, make_router, train_router
from jaxspec.training.router_data import drawn_of, examples_of, judged, kinds_of_pool, targets_of, trust_of
from tests.bench.made import made

POOL = Pool(("none", "lookup", "lm"), (FREE, FREE, MODEL), (False, False, True))
DEPTH, TOKENS = 5, 120
KINDS = kinds_of_pool(POOL, DEPTH)
QUICK = Options(steps=150, rate=2e-2)


def text(seed, *, tells=True) -> Record:
    """Short matches are mostly wrong and long ones right; the model is right where it and the target are sure."""
    rng = np.random.default_rng(seed)
    match = rng.integers(1, 7, TOKENS)
    sure = rng.choice([0.3, 0.6, 0.95], (TOKENS, DEPTH))
    top = rng.choice([0.3, 0.95], TOKENS)
    lookup = np.where(match > 4, 0.95, 0.1) if tells else np.full(TOKENS, 0.5)
    model = np.where(sure > 0.5, sure, 0.1) if tells else np.full(sure.shape, 0.5)
    taken = np.stack([rng.random((TOKENS, DEPTH)) < lookup[:, None], rng.random((TOKENS, DEPTH)) < model], 1)
    run = np.cumprod(taken, axis=2).sum(2)
    right = np.minimum(run, np.arange(TOKENS, 0, -1)[:, None])
    none = np.zeros(TOKENS, int)
    return Record(
        pool=POOL,
        offered=np.stack([none, none + DEPTH, none + DEPTH], 1).astype(np.int32),
        right=np.concatenate([none[:, None], right], 1).astype(np.int32),
        match=np.stack([none, match, none], 1).astype(np.int32),
        confidence=np.stack([np.ones_like(sure), np.ones_like(sure), sure], 1).astype(np.float32),
        top=top.astype(np.float32),
        margin=(top / 2).astype(np.float32),
        entropy=(1 - top).astype(np.float32),
        domain=np.full(TOKENS, -1, np.int32),
        ids=np.arange(TOKENS, dtype=np.int32),
        prompt_length=9,
        limit=TOKENS,
        name=f"text-{seed}",
    )


TEXTS = [text(seed) for seed in range(10)]


def test_every_place_tells_of_every_draft_up_to_its_first_miss():
    record = made(3, 30, limit=999).record
    examples = examples_of([record, made(4, 20).record])
    taken, known = judged(examples)
    assert len(examples.left) == 50
    assert examples.left[:3].tolist() == [30, 29, 28]
    for at in range(30):
        for source in range(4):
            offered, right = record.offered[at, source], record.right[at, source]
            for depth in range(DEPTH):
                told = depth < offered and depth <= right and at + depth < 30
                assert known[at, source, depth] == told
                assert taken[at, source, depth] == (depth < right)
    assert np.all(examples.offered[30:] <= np.arange(19, -1, -1)[:, None])  # as many as may still be emitted


def test_targets_are_what_goodput_learns():
    """Of 5 offered the model draws 2, both right: the third, which would have stood there, is nothing won."""
    record = made(5, 12, limit=999).record
    record.right[0], record.offered[0] = [0, 2, 0, 4], [0, 4, 0, 5]
    kinds = kinds_of_pool(record.pool, DEPTH)
    examples = examples_of([record])
    drawn = examples.offered.copy()
    drawn[0, 3] = 2
    targets = targets_of(examples, kinds, drawn)
    assert targets.takes_known[0, 3].tolist() == [True, True, True, False, False]
    assert targets.taken[0, 3].tolist() == [1, 1, 0, 0, 0]
    assert targets.draws_known[0, 3].tolist() == [False, True, True, False, False]
    assert targets.went[0, 3].tolist() == [1, 1, 0, 0, 0]
    assert targets.takes_known[0, 1].tolist() == [True, True, True, False, False]
    assert targets.taken[0, 1].tolist() == [1, 1, 0, 0, 0]
    assert not targets.draws_known[:, :3].any()
    record.right[0, 3] = 1  # the second was wrong: nothing is known of the third
    again = targets_of(examples_of([record]), kinds, drawn)
    assert again.takes_known[0, 3].tolist() == [True, True, False, False, False]


def test_trust_is_the_logistic_law_that_is_there():
    rng = np.random.default_rng(0)
    record = dataclasses.replace(text(0), limit=10**6)
    sure = rng.random((TOKENS, DEPTH)).astype(np.float32)
    many = []
    for seed in range(40):
        draw = np.random.default_rng(seed).random((TOKENS, DEPTH))
        chance = 1 / (1 + np.exp(-(-0.5 + 2.0 * np.asarray(odds(jnp.asarray(sure))))))
        run = np.minimum(np.cumprod(draw < chance, axis=1).sum(1), np.arange(TOKENS, 0, -1))
        right, confidence = record.right.copy(), record.confidence.copy()
        right[:, 2], confidence[:, 2] = run, sure
        many.append(dataclasses.replace(record, right=right, confidence=confidence))
    np.testing.assert_allclose(trust_of(examples_of(many), KINDS)[2], [-0.5, 2.0], atol=0.25)
    np.testing.assert_array_equal(trust_of(examples_of(many), KINDS)[1], [0, ODDS])  # a free source has no trust
    few = trust_of(examples_of([text(1)]).some(np.arange(1)), KINDS)
    np.testing.assert_allclose(few[2], [0, ODDS], atol=0.6)


def test_a_model_draws_until_one_more_is_not_worth_it():
    examples = examples_of([text(2)])
    cheap, dear = (
        drawn_of(examples, KINDS, guess(KINDS.passes, 0, KINDS.windows)._replace(draft=jnp.asarray(steps)), trust)
        for steps in (np.outer([0, 0, 1], np.arange(DEPTH + 1) * c).astype(np.float32) for c in (0.001, 0.25))
        for trust in [np.asarray([[0, ODDS]] * 3)]
    )
    np.testing.assert_array_equal(cheap[:, 1], examples.offered[:, 1])
    assert dear[:, 2].mean() < 0.7 * cheap[:, 2].mean()
    sure = examples.confidence[:, 2, 0] > 0.9
    assert dear[sure, 2].mean() > dear[~sure, 2].mean()
    assert np.all(dear[examples.offered[:, 2] > 0, 2] >= 1)


@pytest.mark.parametrize("kind", ["mlp", "prior"])
def test_trained_it_predicts_texts_that_were_held_out_better(kind):
    report = train_router(TEXTS, dataclasses.replace(QUICK, kind=kind)).report
    losses = report["log_loss"]
    assert report["held_out"] == 2
    assert losses["trained"]["all"] < 0.85 * losses["naive"]["all"]
    assert losses["trained"]["lookup"] < 0.6 * losses["base rate"]["lookup"]
    assert losses["trained"]["lm"] < losses["base rate"]["lm"]


def test_where_nothing_tells_nothing_is_gained():
    losses = train_router([text(seed, tells=False) for seed in range(10)], QUICK).report["log_loss"]
    assert losses["trained"]["lookup"] > 0.97 * losses["base rate"]["lookup"]


def test_a_trained_router_decides_better_than_an_untrained_one():
    trained = train_router(TEXTS[:8], QUICK)
    prices = curve_prices("flat", POOL, DEPTH, 0.4)
    costs = CostTable(*(jnp.asarray(each, jnp.float32) for each in prices))
    selector, naive = router(KINDS), naive_net(KINDS.free)
    rates = [replay(selector, SelectorParams(costs, net), TEXTS[8:], prices).rate for net in (trained.weights, naive)]
    assert rates[0] > 1.03 * rates[1]


def test_an_artifact_is_written_whole_with_its_card_and_read(tmp_path):
    out, done = tmp_path / "out", []
    options = dataclasses.replace(QUICK, kind="prior", steps=20, strength=8.0)
    told = lambda *each: done.append(each)  # noqa: E731
    trained = make_router(TEXTS, out, options, data=["records"], command="python x", told=told)
    assert done[-1] == (20, 20, 20 * 256)
    got = read_trained(out, "goodput", KINDS)
    for mine, other in zip(*map(jax.tree.leaves, (got, trained.weights)), strict=True):
        np.testing.assert_array_equal(mine, other)
    assert isinstance(got, Prior)
    np.testing.assert_array_equal(got.tried, 8.0)
    np.testing.assert_array_equal(got.takes.slopes, 3.0)
    card = (out / CARD).read_text()
    assert "python x" in card
    assert f"{trained.report['log_loss']['trained']['all']:.4f}" in card
    assert json.loads((out / RECORD).read_text())["card"]["options"]["strength"] == 8.0
    with pytest.raises(ValueError, match="already exists"):
        make_router(TEXTS, out, options, data=[], command="")
    with pytest.raises(ValueError, match="different setups"):
        make_router([*TEXTS, made(1).record], tmp_path / "two", options, data=[], command="")
    assert not (tmp_path / "two").exists()


def test_texts_are_held_out_whole_and_some_always():
    assert hold_out(10, 0.2, 0).sum() == 2
    assert hold_out(2, 0.01, 0).sum() == hold_out(2, 0.99, 0).sum() == 1
    assert not np.array_equal(hold_out(10, 0.5, 0), hold_out(10, 0.5, 1))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kind": "forest"}, "choose mlp or prior"),
        ({"steps": 0}, "give 1 or more"),
        ({"hold_out": 1.0}, "between 0 and 1"),
        ({"rate": 0.0}, "rate must be above 0"),
        ({"draft_step": -1.0}, "0 or more"),
    ],
)
def test_bad_options_are_refused(changed, said):
    with pytest.raises(ValueError, match=said):
        Options(**changed)


def test_too_few_texts_are_refused():
    with pytest.raises(ValueError, match="give 2 or more"):
        train_router(TEXTS[:1], QUICK)
    with pytest.raises(ValueError, match="no records"):
        train_router([], QUICK)
