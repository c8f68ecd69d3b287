"""The table of a comparison is what replays say; cost tables from files count; bad input is one sentence."""

import dataclasses
import json

import numpy as np
import pytest

from jaxspec.bench.compare import Options, compare, read_costs, regret, tables
from jaxspec.bench.oracle import always, oracle
from jaxspec.bench.prices import curve_prices
from jaxspec.bench.record import save
from jaxspec.bench.replay import replay
from jaxspec.bench.rules import lookup_else_model
from tests.bench.made import DEPTH, POOL, made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("records") / "made"
    names = ("code", "code", "chat", "qa")
    save([made(n, 40, category=name).record for n, name in enumerate(names)], place)
    return str(place)


def records(folder):
    return [made(n, 40, category=name).record for n, name in enumerate(("code", "code", "chat", "qa"))]


def test_a_comparison_is_what_the_replays_say(folder):
    report = compare(Options(folder, draft_step=(0.3, 0.03), select=("field", "fixed:lm:2")))
    for table in report["tables"]:
        prices = curve_prices("flat", POOL, DEPTH, table["draft_step"])
        rule = replay(lookup_else_model(1, 3), (), records(folder), prices).rate
        best = oracle(records(folder), prices).rate
        lm = always(records(folder), prices, 3, 2).rate
        shown = table["selectors"]
        assert shown["field"]["rate"] == pytest.approx(rule)
        assert shown["field"]["share"] == 0
        assert shown["fixed:lm:2"]["rate"] == pytest.approx(lm, rel=1e-5)
        assert shown["fixed:lm:2"]["share"] == pytest.approx((lm - rule) / (best - rule), rel=1e-3)
        assert table["bounds"]["oracle"]["share"] == 1
        assert table["bounds"]["plain"]["rate"] == pytest.approx(1)
        assert list(shown["field"]["categories"]) == ["chat", "code", "qa"]
    json.dumps(report, allow_nan=False)
    assert [table.row_count for table in tables(report)] == [6, 3, 3]


def test_costs_of_a_file_are_charged(folder, tmp_path):
    table = {
        "verify": {"1": 2.0, "2": 2.2, "4": 2.6, "6": 3.0},
        "draft": {"lm": {"1": 0.4, "5": 2.0}},
        "lag": {"lm": 0.1},
        "ride": 0.5,
    }
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(table))
    windows, costs = read_costs(str(file), POOL)
    assert windows == (1, 2, 4, 6)
    (found,) = compare(Options(folder, costs=str(file), select=("fixed:lm:2",)))["tables"]
    expected = always(records(folder), costs, 3, 2, windows=windows).rate * 2  # a plain step takes 2
    assert found["selectors"]["fixed:lm:2"]["rate"] == pytest.approx(expected, rel=1e-5)
    assert found["bounds"]["plain"]["rate"] == pytest.approx(1)
    free = always(records(folder), costs._replace(lag=np.zeros(4)), 3, 2, windows=windows).rate * 2
    assert free > 1.02 * expected  # negative control: to catch up is charged
    for wrong, said in (
        ({"verify": {"1": 2.0, "2": -1, "6": 3}}, "finite number from 0"),
        ({"draft": {"medusa": {"1": 0.1}}}, "draft has no 'lm'"),
        ({"lag": {}}, "lag has no 'lm'"),
        ({"verify": {"1": 2.0, "5": 3.0}}, "times up to width 6"),
        ({"verify": "fast"}, "no verify by width"),
        ({"verify": [2.0, 2.2, 2.6, 3.0]}, "no verify by width"),
    ):
        file.write_text(json.dumps(table | wrong))
        with pytest.raises(ValueError, match=said):
            compare(Options(folder, costs=str(file)))


def test_texts_that_change_show_when_a_selector_recovers(folder):
    options = Options(folder, draft_step=(0.05,), select=("fixed:lookup:1",), order=("code", "chat"), part=80)
    (table,) = compare(options)["tables"]
    assert [shift["start"] for shift in table["selectors"]["fixed:lookup:1"]["shifts"]] == [0, 80]
    (table,) = compare(dataclasses.replace(options, sabotage="lm:30"))["tables"]
    assert [shift["start"] for shift in table["selectors"]["fixed:lookup:1"]["shifts"]] == [0, 30, 80]
    assert not table["selectors"]["fixed:lookup:1"]["shifts"][1]["best"].startswith("lm")
    (separate,) = compare(Options(folder, draft_step=(0.05,), sabotage="lm:0", select=("fixed:lm:3",)))["tables"]
    assert separate["selectors"]["fixed:lm:3"]["rate"] < 1  # no draft is right, and every round pays for three
    assert "shifts" not in separate["selectors"]["fixed:lm:3"]


def test_regret_is_reported_for_every_process():
    report = regret(Options(draft_step=(0.1,), select=("field",), tokens=200))
    names = ["stationary", "drifting", "switching", "adversarial", "useless"]
    assert [each["process"] for each in report["processes"]] == names
    assert all(set(each["players"]) == {"field", "informed"} for each in report["processes"])
    other = regret(Options(draft_step=(0.1,), select=("field",), tokens=200, seed=1))
    assert other["processes"][0]["oracle_rate"] != report["processes"][0]["oracle_rate"]
    assert tables(report)[0].row_count == 5
    json.dumps(report, allow_nan=False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"traces": "nowhere"}, "cannot read the traces"),
        ({"costs": "steep"}, "choose flat, cpu"),
        ({"draft_step": (-1.0,)}, "give 0 or more"),
        ({"select": ("best",)}, "choose"),
        ({"order": ("poetry",)}, "'poetry' has no texts"),
        ({"part": 5}, "the order of the parts"),
        ({"sabotage": "lm"}, "give SOURCE:PLACE"),
        ({"sabotage": "medusa:3"}, "choose among none, lookup, jacobi, lm"),
    ],
)
def test_bad_input_is_one_sentence(folder, changes, said):
    with pytest.raises(ValueError, match=said) as error:
        compare(dataclasses.replace(Options(folder), **changes))
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="2 or more"):
        regret(Options(tokens=1))
