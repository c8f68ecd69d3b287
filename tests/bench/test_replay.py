"""A replay is what a selector would have done: its rounds, signals, feedback and costs; nothing beats the optimum."""

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.bench.oracle import always, best_fixed, optimum, oracle, share_of_gap
from jaxspec.bench.prices import Prices, curve_prices, priced
from jaxspec.bench.replay import replay
from jaxspec.bench.rules import Info, lookup_else_model, selector_by_name
from jaxspec.select import fixed
from jaxspec.select.feedback import censor
from tests.bench.made import DEPTH, POOL, made, recording, some_prices

EVERY = recording((1, 5), (3, 3), (2, 4), (0, 0), (3, 5), (2, 1))


def test_a_replayed_choice_is_the_choice_walked_in_numpy():
    records = [made(seed, tokens).record for seed, tokens in ((1, 40), (2, 23), (3, 1))]
    prices = some_prices()
    for source, lookahead in ((0, 0), (1, 5), (2, 2), (3, 4)):
        played = replay(fixed(source, lookahead), (), records, prices)
        walked = always(records, prices, source, lookahead)
        for name in played.series._fields[:-1]:
            np.testing.assert_array_equal(getattr(played.series, name), getattr(walked.series, name), err_msg=name)
        asked = np.asarray(walked.series.source == 2) | (np.asarray(walked.series.emitted) == 0) | (source != 2)
        # the branch rides where its source was asked, offered or not; a walk knows only what was settled
        ride = np.where(asked, 0, prices.ride) if lookahead else 0
        np.testing.assert_allclose(played.series.cost, walked.series.cost + ride, rtol=1e-5)
        np.testing.assert_array_equal(played.tokens, [40, 23, 1])
    other = dataclasses.replace(records[0], right=np.minimum(records[0].right, 1))
    changed = replay(fixed(3, 4), (), [other, *records[1:]], prices)
    assert changed.rate < replay(fixed(3, 4), (), records, prices).rate


def test_a_round_by_hand():
    """Round 1: lm drafts 3 after catching up with 6 prompt tokens; round 2: it has all but the last draft."""
    record = made(1, 12).record
    record.right[:, 3], record.offered[:, 3] = np.minimum(DEPTH, np.arange(12, 0, -1)), DEPTH
    prices = some_prices()
    series = replay(fixed(3, 3), (), [record], prices).text(0)
    assert series.emitted.tolist() == [4, 4, 4]
    assert series.lookahead.tolist() == [3, 3, 3]
    work = prices.verify[3] + prices.draft[3, 3]
    np.testing.assert_allclose(series.cost, [work + 6 * 0.03, work + 0.03, work + 0.03], rtol=1e-5)


def test_no_more_drafts_than_may_still_be_emitted():
    bound = replay(fixed(3, 5), (), [made(4, 20).record], some_prices()).text(0)
    assert np.all(bound.position + bound.lookahead < 20)
    free = replay(fixed(3, 5), (), [made(4, 20, limit=999).record], some_prices()).text(0)
    assert np.any(free.position + free.lookahead >= 20)  # negative control: nobody knew where the text ends
    assert free.emitted.sum() == bound.emitted.sum() == 20


def test_feedback_is_what_censor_says_of_the_drafts_themselves():
    one = made(5)
    played = replay(EVERY, (), [one.record], some_prices())
    series, kept, differs = played.text(0), played.state, 0
    for turn, (at, source, lookahead, emitted) in enumerate(
        zip(series.position, series.source, series.lookahead, series.emitted, strict=True)
    ):
        count = np.minimum(one.record.offered[at], 40 - at - 1)
        count[3] = lookahead if source == 3 else 0
        following = np.pad(one.record.ids[at : at + DEPTH], (0, max(0, at + DEPTH - 40)), constant_values=-1)
        tokens = jnp.broadcast_to(jnp.asarray(following)[None, None], (1, len(POOL.names), DEPTH))
        drafts, counts = jnp.asarray(one.drafts[at])[None], jnp.asarray(count)[None]
        known, right = censor(drafts, counts, tokens, jnp.asarray([emitted]))
        np.testing.assert_array_equal(kept.known[turn], np.asarray(known)[0])
        np.testing.assert_array_equal(kept.chance[turn], np.asarray(right)[0])
        uncensored, _ = censor(drafts, counts, tokens, jnp.asarray([DEPTH]))
        differs += int(np.any(np.asarray(uncensored) != np.asarray(known)))
    assert differs > 5  # negative control: what was not emitted would have told more


def test_signals_are_those_of_the_place():
    one = made(6)
    played = replay(EVERY, (), [one.record], some_prices())
    series, (offered, match, lag, length) = played.text(0), played.state.signals
    missed = 6
    for turn, at in enumerate(series.position):
        np.testing.assert_array_equal(offered[turn], np.minimum(one.record.offered[at], 39 - at))
        np.testing.assert_array_equal(match[turn], one.record.match[at])
        assert length[turn] == 7 + at
        assert lag[turn].tolist() == [0, 0, 0, missed]
        ran = series.source[turn] == 3
        missed = int(series.emitted[turn] > series.lookahead[turn]) if ran else missed + int(series.emitted[turn])


def _changed(record, name, where):
    """The record with other values of a field where the mask says so."""
    field = getattr(record, name).copy()
    field[where] = 0.123 if name == "confidence" else 0
    return dataclasses.replace(record, **{name: field})


def test_a_selector_sees_nothing_of_what_did_not_run():
    one = made(7).record
    played = replay(EVERY, (), [one], some_prices())
    series = played.text(0)
    began = np.zeros(40, bool)
    began[series.position] = True
    idle = np.ones((40, 4), bool)
    idle[series.position[series.source == 3], 3] = False
    idle[:, :3] = ~began[:, None]
    for name in ("right", "confidence"):
        again = replay(EVERY, (), [_changed(one, name, idle)], some_prices())
        assert again.state.hashed == played.state.hashed, name
        shown = np.zeros((40, 4), bool)
        shown[series.position, 1] = True  # negative control: of lookup everything at hand is told
        assert replay(EVERY, (), [_changed(one, name, shown)], some_prices()).state.hashed != played.state.hashed
    deep = one.confidence.copy()
    for place, lookahead in zip(series.position, series.lookahead, strict=True):
        deep[place, 3, lookahead:] = 0.321
    assert replay(EVERY, (), [dataclasses.replace(one, confidence=deep)], some_prices()).state.hashed == (
        played.state.hashed
    )


def test_a_state_is_carried_on_or_made_afresh():
    records = [made(seed, 15).record for seed in (8, 9)]
    carried = replay(EVERY, (), records, some_prices())
    assert carried.state.turn == carried.rounds.sum()
    fresh = replay(EVERY, (), records, some_prices(), fresh=True)
    assert fresh.state.turn == fresh.rounds[1]
    first = replay(EVERY, (), records[:1], some_prices())
    second = replay(EVERY, (), records[1:], some_prices(), state=first.state)
    assert second.state.hashed == carried.state.hashed
    assert replay(EVERY, (), records[1:], some_prices()).state.hashed != carried.state.hashed


def _cheapest_by_force(record, prices, at=0):
    if at >= len(record):
        return 0.0
    ways = [prices.verify[0] + _cheapest_by_force(record, prices, at + 1)]
    for source, drafts in itertools.product(range(1, 4), range(1, DEPTH + 1)):
        if drafts <= min(record.offered[at, source], len(record) - at - 1):
            cost = prices.verify[drafts] + prices.draft[source, drafts] + (prices.ride if source == 2 else 0)
            ways.append(cost + _cheapest_by_force(record, prices, at + min(record.right[at, source], drafts) + 1))
    return min(ways)


def test_the_optimum_is_the_cheapest_of_all_ways():
    prices = some_prices()
    for seed in (10, 11, 12):
        record = made(seed, 7).record
        np.testing.assert_allclose(optimum([record], prices).cost[0], _cheapest_by_force(record, prices), rtol=1e-6)


def test_nothing_is_beyond_the_optimum_and_the_oracle_is_between():
    records = [made(seed, 60).record for seed in range(20, 26)]
    prices = some_prices()
    best, greedy = optimum(records, prices), oracle(records, prices)
    (source, lookahead), hindsight = best_fixed(records, prices)
    rule = replay(lookup_else_model(1, 3), (), records, prices)
    assert best.rate >= greedy.rate > hindsight.rate >= always(records, prices, 1, 3).rate
    assert hindsight.rate == pytest.approx(always(records, prices, source, lookahead).rate)
    assert 0 < share_of_gap(hindsight.rate, rule.rate, greedy.rate) < 1
    assert share_of_gap(rule.rate, rule.rate, greedy.rate) == 0
    blind = [dataclasses.replace(record, right=np.zeros_like(record.right)) for record in records]
    nothing = oracle(blind, prices)  # negative control: where no draft is right, plain decoding is all there is
    assert nothing.rate == pytest.approx(1.0, abs=1e-5) == optimum(blind, prices).rate
    assert nothing.by_source() == {"none": 360, "lookup": 0, "jacobi": 0, "lm": 0}


def test_the_oracle_takes_the_best_of_the_round_alone():
    record = made(13, 3).record
    record.offered[:] = [[0, 2, 0, 5], [0, 0, 0, 5], [0, 0, 0, 5]]
    record.right[:] = [[0, 1, 0, 2], [0, 0, 0, 2], [0, 0, 0, 1]]
    prices = curve_prices("flat", POOL, DEPTH, 0.5)
    series = oracle([record], prices).text(0)  # 2 / 1.04 = 1.92 by lookup; 3 / (1.08 + 1) = 1.44 by the model
    assert (series.source[0], series.lookahead[0], series.emitted[0]) == (1, 1, 2)
    cheap = oracle([record], curve_prices("flat", POOL, DEPTH, 0.01)).text(0)
    assert (cheap.source[0], cheap.lookahead[0], cheap.emitted[0]) == (3, 2, 3)


def test_results_by_category_and_by_source():
    records = [made(1, 30, category="code", good=0.95).record, made(2, 30, category="qa", good=0.2).record]
    played = replay(lookup_else_model(1, 3), (), records, some_prices())
    by = played.by_category()
    assert list(by) == ["code", "qa"]
    assert by["code"] > played.rate > by["qa"]
    assert played.tokens.tolist() == [30, 30]
    assert sum(played.by_source().values()) == played.rounds.sum()


def test_the_rule_of_the_field_asks_for_what_it_says():
    record = made(14, 30, limit=999).record
    series = replay(lookup_else_model(1, 3, lookup_lookahead=4, model_lookahead=2), (), [record], some_prices()).text(0)
    matched = (record.match[series.position, 1] >= 3) & (record.offered[series.position, 1] > 0)
    assert 0 < matched.sum() < len(matched)
    np.testing.assert_array_equal(series.source, np.where(matched, 1, 3))
    expected = np.where(matched, np.minimum(record.offered[series.position, 1], 4), 2)
    np.testing.assert_array_equal(series.lookahead, expected)


def test_windows_that_were_compiled_are_charged():
    records = [made(1).record]
    table = some_prices()._replace(verify=np.asarray([1.0, 2.0, 4.0, 9.0], np.float32))
    by_drafts = priced(table, records, windows=(1, 2, 4, 6)).verify
    assert by_drafts.tolist() == [1, 2, 4, 4, 9, 9]
    with pytest.raises(ValueError, match="times up to width 6"):
        priced(table, records, windows=(1, 2, 4, 5))
    with pytest.raises(ValueError, match="4 times to verify"):
        priced(table, records)
    with pytest.raises(ValueError, match=r"give \(4, 6\)"):
        priced(some_prices()._replace(draft=np.zeros((3, 6))), records)


def test_selectors_by_name():
    info = Info(POOL, DEPTH, tuple(range(1, DEPTH + 2)), some_prices())
    records = [made(1).record]
    plain = replay(*selector_by_name("fixed:none", info), records, some_prices())
    assert plain.by_source()["none"] == 40
    assert replay(*selector_by_name("fixed:lm:2", info), records, some_prices()).text(0).lookahead.max() == 2
    for name in ("goodput", "rule", "field"):
        assert replay(*selector_by_name(name, info), records, some_prices()).tokens.sum() == 40
    for wrong in ("fixed:lm:9", "fixed:nobody:2", "fixed:lm", "best"):
        with pytest.raises(ValueError, match=r"choose goodput, .*, rule, field or fixed"):
            selector_by_name(wrong, info)


def test_bad_costs_are_refused_by_name():
    with pytest.raises(ValueError, match="choose flat, cpu"):
        curve_prices("steep", POOL, DEPTH, 0.1)
    with pytest.raises(ValueError, match="give 0 or more"):
        curve_prices("cpu", POOL, DEPTH, float("nan"))
    assert isinstance(curve_prices("cpu", POOL, DEPTH, 0.1), Prices)
