"""Known processes have the acceptance they say and the best choice that follows; shifts are found and lost as made."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.bench import processes, shifts
from jaxspec.bench.oracle import always, best_fixed
from jaxspec.bench.prices import curve_prices
from jaxspec.bench.regret_plot import plot_regrets
from jaxspec.bench.replay import Series, replay
from jaxspec.bench.rules import lookup_else_model
from jaxspec.contracts import Choice, Selector
from jaxspec.select import fixed
from jaxspec.select.expected import Costs, best_lookahead, speedup
from tests.bench.made import made

DEPTH = 8
PRICES = curve_prices("flat", processes.POOL, DEPTH, 0.1)


def test_a_stationary_process_has_the_best_choice_of_the_formula():
    process = processes.stationary(4000, (0.3, 0.8), seed=1)
    costs = {n: Costs(tuple(map(float, PRICES.verify)), tuple(map(float, PRICES.draft[n]))) for n in (1, 2)}
    by_formula = max((speedup(a, best_lookahead(a, costs[n]), costs[n]), n) for n, a in ((1, 0.3), (2, 0.8)))
    (source, lookahead), played = best_fixed([process.record], PRICES)
    assert source == by_formula[1] == 2
    assert abs(lookahead - best_lookahead(0.8, costs[2])) <= 1
    assert played.rate == pytest.approx(by_formula[0], rel=0.03)
    swapped = processes.stationary(4000, (0.8, 0.3), seed=1)  # negative control
    assert best_fixed([swapped.record], PRICES)[0][0] == 1


@pytest.mark.parametrize("kind", processes.KINDS)
def test_runs_are_as_likely_as_the_chances_say(kind):
    process = kind(3000, seed=3)
    record = process.record
    first = record.right > 0
    expected, variance = process.chance.sum(0), (process.chance * (1 - process.chance)).sum(0)
    assert np.all(np.abs(first.sum(0) - expected) <= 4 * np.sqrt(variance) + 1e-9)
    follows = np.where(first[:-1], np.minimum(record.right[1:], DEPTH - 1) + 1, 0)
    np.testing.assert_array_equal(record.right[:-1], follows)
    for signal in (record.match, record.confidence[:, :, 0], record.top[1:]):  # nothing but what happened tells
        assert len(np.unique(signal, axis=0)) == 1


def test_sources_change_places_when_they_should():
    block = processes.switching(1000, block=100)
    good = block.chance.argmax(1)
    assert np.flatnonzero(np.diff(good)).tolist() == [99, 199, 299, 399, 499, 599, 699, 799, 899]
    doubling = processes.adversarial(1000, first=50)
    assert np.flatnonzero(np.diff(doubling.chance.argmax(1))).tolist() == [49, 149, 349, 749]
    wave = processes.drifting(1000, period=500)
    assert (wave.chance[0].argmax(), wave.chance[250].argmax(), wave.chance[500].argmax()) == (1, 2, 1)


def follow_the_last() -> Selector:
    """Takes the source whose first draft was right last, full information; learns within a round."""

    def choose(params, state, signals):
        return Choice(jnp.argmax(state, axis=1).astype(jnp.int32), jnp.full(1, 8, jnp.int32))

    def update(params, state, signals, choice, proposal, verdict, feedback):
        return jnp.where(feedback.known[:, :, 0], 0.8 * state + 0.2 * feedback.chance[:, :, 0], state)

    def init(rows, sources):
        return jnp.full((rows, sources), 0.4).at[:, 0].set(0.0)

    return Selector("last", init, choose, update, feedback=True)


def test_regret_grows_for_who_does_not_learn_and_is_nil_for_the_best():
    process = processes.stationary(3000, (0.1, 0.8), seed=2)
    (source, lookahead), _ = best_fixed([process.record], PRICES)
    players = {"best": (fixed(source, lookahead), ()), "field": (lookup_else_model(1, 2), ())}
    report = processes.regrets(process, players, PRICES, points=30)
    best, field = (report["players"][name]["regret_to_best_fixed"] for name in ("best", "field"))
    np.testing.assert_allclose(best, 0, atol=1e-2)
    assert field[15] > 100
    assert field[30] == pytest.approx(2 * field[15], rel=0.15)  # in proportion to the text: it never learns
    informed = report["players"]["informed"]
    assert abs(informed["regret_to_best_fixed"][-1]) < 0.02 * 3000
    assert all(each["regret_to_oracle"][-1] > 0 for each in report["players"].values())
    assert report["oracle_rate"] > report["best_fixed"]["rate"] > report["plain_rate"] == pytest.approx(1)
    json.dumps(report)


def test_who_follows_the_changes_beats_every_fixed_choice():
    process = processes.switching(3000, block=500, seed=4)
    players = {"last": (follow_the_last(), ()), "stubborn": (fixed(1, 5), ())}
    report = processes.regrets(process, players, PRICES)
    assert report["players"]["last"]["rate"] > 1.2 * report["best_fixed"]["rate"]
    assert report["players"]["informed"]["rate"] > report["players"]["last"]["rate"]
    assert report["players"]["stubborn"]["rate"] <= report["best_fixed"]["rate"] + 1e-6


def test_nothing_pays_where_every_draft_is_wrong():
    report = processes.regrets(processes.useless(300), {"lm": (fixed(2, 4), ())}, PRICES)
    assert report["best_fixed"] == {"choice": "none:0", "rate": 1.0}
    assert report["oracle_rate"] == report["players"]["informed"]["rate"] == 1.0
    assert report["players"]["lm"]["rate"] == pytest.approx(1 / (PRICES.verify[4] + PRICES.draft[2, 4]), rel=0.01)


def test_the_picture_is_drawn(tmp_path):
    report = processes.regrets(processes.useless(50), {"lm": (fixed(2, 4), ())}, PRICES, points=10)
    plot_regrets([report, report], tmp_path / "regret.png")
    assert (tmp_path / "regret.png").read_bytes()[:4] == b"\x89PNG"


def test_chances_are_checked():
    with pytest.raises(ValueError, match="give 0 to 1"):
        processes.stationary(10, (0.3, 1.5))


def test_spliced_parts_are_the_parts_and_drafts_do_not_reach_over_their_ends():
    records = [made(n, 20, category=name).record for n, name in enumerate(("code", "chat", "code", "rag"))]
    whole, starts = shifts.splice(records, ["code", "rag", "chat"])
    assert starts == [0, 40, 60]
    assert len(whole) == whole.limit == 80
    assert whole.category == "code>rag>chat"
    np.testing.assert_array_equal(whole.ids, np.concatenate([records[i].ids for i in (0, 2, 3, 1)]))
    for end in (20, 40, 60, 80):
        for at in range(end - 6, end):
            assert np.all(whole.offered[at] <= end - at - 1)
    assert np.any(records[0].right[14:] != whole.right[14:20])  # negative control: they would have
    short, starts = shifts.splice(records, ["code", "chat", "code"], tokens=15)
    assert starts == [0, 15, 30]
    np.testing.assert_array_equal(short.ids, np.concatenate([records[i].ids[:15] for i in (0, 1, 2)]))
    with pytest.raises(ValueError, match="'chat' has no texts that are left"):
        shifts.splice(records, ["chat", "chat"])
    with pytest.raises(ValueError, match="is empty"):
        shifts.splice(records, [])


def test_sabotage_makes_every_draft_wrong_from_its_place_on():
    record = made(1, 40, good=0.95).record
    broken = shifts.sabotage(record, "lm", 20)
    assert np.all(broken.right[20:, 3] == 0)
    assert np.all(broken.right[:20, 3] + np.arange(20) <= 20)
    np.testing.assert_array_equal(broken.right[:15, 3], record.right[:15, 3])
    np.testing.assert_array_equal(np.delete(broken.right, 3, 1), np.delete(record.right, 3, 1))
    assert np.any(record.right[20:, 3] > 0)
    with pytest.raises(ValueError, match="choose among none, lookup, jacobi, lm"):
        shifts.sabotage(record, "medusa", 3)


def _series(emitted, cost) -> Series:
    emitted = np.asarray(emitted)
    zeros = np.zeros_like(emitted)
    return Series(np.cumsum(emitted) - emitted, zeros, zeros, zeros, emitted, np.asarray(cost, np.float32))


def test_recovery_counts_the_rounds_that_were_lost():
    best = _series([4] * 50, [2.0] * 50)
    series = _series([1] * 12 + [4] * 40, [2.0] * 12 + [2.0] * 40)
    assert shifts.recovery(series, best, window=8) == 12
    assert shifts.recovery(series, best, window=8, start=14) == 0
    assert shifts.recovery(series, best, window=8, share=0.3) == 5  # its last round is a good one: 11 tokens
    never = _series([3] * 40, [2.0] * 40)  # negative control: three quarters of the best rate, always
    assert shifts.recovery(never, best, window=8) is None
    assert shifts.recovery(never, best, window=8, share=0.7) == 0
    assert shifts.recovery(series, best, window=100) is None


def test_recoveries_compare_with_the_best_choice_of_each_part():
    parts = [processes.stationary(600, chances, seed=n).record for n, chances in enumerate(((0.9, 0.1), (0.1, 0.9)))]
    parts = [dataclasses.replace(part, category=name) for part, name in zip(parts, "ab", strict=True)]
    whole, starts = shifts.splice(parts, ["a", "b"])
    quick = replay(follow_the_last(), (), [whole], PRICES).text(0)
    found = shifts.recoveries(quick, whole, PRICES, starts)
    assert [each["best"].split(":")[0] for each in found] == ["lookup", "lm"]
    assert found[0]["rounds"] <= 16
    assert found[1]["rounds"] <= 64
    stuck = replay(fixed(1, 8), (), [whole], PRICES).text(0)
    found = shifts.recoveries(stuck, whole, PRICES, starts)
    assert found[0]["rounds"] <= 16
    assert found[1]["rounds"] is None


def test_a_cut_is_played_as_its_part_of_the_text():
    record = made(3, 40, good=0.9).record
    part = shifts.cut(record, 10, 25)
    assert (len(part), part.limit, part.prompt_length) == (15, 15, 17)
    assert always([part], PRICES_OF_MADE, 3, 4).tokens.tolist() == [15]
    with pytest.raises(ValueError, match="cannot cut 10 to 41"):
        shifts.cut(record, 10, 41)


PRICES_OF_MADE = curve_prices("flat", made(1).record.pool, made(1).record.depth, 0.1)
