"""What passes and drafts cost adds up, timings are used as they were made, acceptances as they were counted."""

import dataclasses
import json
import math

import pytest

from jaxspec.bench import advise_acceptance, advise_costs, chips
from jaxspec.bench.advise_costs import Clock, Timed, Work
from jaxspec.bench.advise_memory import Layout, held
from jaxspec.bench.advise_models import Candidate, find_draft, find_model
from jaxspec.costs import store
from jaxspec.models import parameter_shapes
from jaxspec.select import cost, expected
from tests.scripts.tiny import TINY

TARGET = find_model(str(TINY / "target"))
DRAFT = find_draft(str(TINY / "draft"), TARGET)
LAYOUT = Layout(rows=2, context=256, dtype="bfloat16")
SLOW = chips.Chip("slow", 10**9, 1e9, math.inf)
"""Bytes alone take time, a nanosecond each."""

SMOLLM2 = find_model("smollm2-135m")


def costs(draft: Candidate, chip=SLOW, layout=LAYOUT, target=TARGET) -> expected.Costs:
    return advise_costs.costs(target, draft, layout, Clock(chip, layout.rows_on_device))


def test_a_plain_step_reads_weights_and_caches_once():
    read = held(TARGET, None, LAYOUT)
    norms = sum(leaf.shape[0] for name, leaf in parameter_shapes(TARGET.config).items() if name == "norm.weight")
    seconds = costs(find_draft("lookup", TARGET)).verify[0]
    assert seconds == pytest.approx((read.target + read.caches - 2 * norms) * 1e-9)
    untied = dataclasses.replace(TARGET.config, tie_embeddings=False)
    other = dataclasses.replace(TARGET, config=untied)
    assert costs(find_draft("lookup", other), target=other).verify[0] == pytest.approx(
        seconds
    )  # rows of it are looked up


def test_drafts_cost_what_they_run():
    free, model = costs(find_draft("lookup", TARGET)), costs(DRAFT)
    assert free.draft == (0.0,) * 8
    assert model.draft[3] == pytest.approx(3 * model.draft[1])
    assert model.draft[1] == pytest.approx(costs(find_draft("lookup", TARGET), target=DRAFT.model).verify[0])
    medusa = costs(find_draft("medusa", SMOLLM2), target=SMOLLM2)
    assert medusa.most == 4  # heads
    assert len(set(medusa.draft[1:])) == 1
    feature, distilled = (costs(find_draft(kind, SMOLLM2), target=SMOLLM2) for kind in ("feature", "lm"))
    assert feature.draft[2] == pytest.approx(2 * feature.draft[1])
    assert medusa.draft[1] < distilled.draft[1] < distilled.verify[0] / 4
    assert feature.draft[1] < distilled.draft[1]


def test_an_exit_runs_its_layers_once_more_than_it_drafts_and_the_others_once():
    layers, whole = TARGET.config.num_layers, costs(find_draft("lookup", TARGET)).verify[0]
    output = TARGET.config.vocab_size * TARGET.config.hidden_size * 2 * 1e-9
    layer = (whole - output) / layers
    found = costs(find_draft("exit:1", TARGET))
    assert found.draft[3] == pytest.approx(3 * (layer + output) + layer)
    assert found.verify[3] == pytest.approx(3 * layer + output)
    assert found.verify[0] == pytest.approx(whole)


def test_arithmetic_takes_over_where_there_is_much_of_it():
    clock = Clock(chips.Chip("chip", 0, bandwidth=1e9, flops=1e12), rows=4)
    work = Work(read=1e9, weights=1e9, attention=1e6)
    assert clock.seconds(work, 1) == 1.0
    assert clock.seconds(work, 1000) == pytest.approx(4 * 1000 * (2e9 + 1e6) / 1e12)
    assert dataclasses.replace(clock, overhead=0.5).seconds(work, 1) == 1.5


def test_windows_are_padded_as_the_engine_pads_them():
    busy = chips.Chip("busy", 0, math.inf, 1e9)
    verify = costs(find_draft("lookup", TARGET), busy).verify
    assert verify[1] == verify[3] == pytest.approx(4 * verify[0])
    assert verify[4] == verify[7] == pytest.approx(8 * verify[0])
    branch = costs(find_draft("jacobi:2:3:4", TARGET), busy)
    assert branch.verify[1] == pytest.approx((4 + 2 * 2 - 1) * branch.verify[0])


def test_more_devices_read_less_and_whole_drafts_do_not():
    one, four = (costs(DRAFT, layout=dataclasses.replace(LAYOUT, model=n)) for n in (1, 2))
    assert four.verify[0] < 0.6 * one.verify[0]
    assert four.draft == one.draft
    split = costs(DRAFT, layout=dataclasses.replace(LAYOUT, model=2, shard_drafts=True))
    assert split.draft[1] < one.draft[1]


def test_timings_are_used_between_their_widths_and_scale_the_draft():
    timed = Timed({1: 2.0, 4: 3.0, 8: 7.0}, weights=held(TARGET, None, LAYOUT).target)
    assert [timed.at(width) for width in (1, 2, 4, 6, 8, 10)] == pytest.approx([2, 7 / 3, 3, 5, 7, 9])
    clock = Clock(SLOW, LAYOUT.rows_on_device)
    found, least = advise_costs.costs(TARGET, DRAFT, LAYOUT, clock, timed), costs(DRAFT)
    assert found.verify == (2.0, 3.0, 3.0, 3.0, 7.0, 7.0, 7.0, 7.0)
    assert found.draft[1] / found.verify[0] == pytest.approx(least.draft[1] / least.verify[0])
    with pytest.raises(ValueError, match="timed a target that reads 0 MB"):
        advise_costs.costs(TARGET, DRAFT, LAYOUT, clock, dataclasses.replace(timed, weights=1.0))


def test_rounds_that_were_timed_say_what_drafting_took():
    windows = {"1": {"seconds": 2.0}, "4": {"seconds": 3.0}, "8": {"seconds": 7.0}}
    steps = {"windows": windows, "weight_bytes": held(TARGET, None, LAYOUT).target}
    rounds = lambda own: {"rounds": 10, "decode_seconds": 45.0, "sources": {DRAFT.source: {"rounds": own}}}  # noqa: E731
    report = {"steps": steps, "results": {"overall": {"plain": {"rounds": 1}, f"fixed:{DRAFT.source}:3": rounds(10)}}}
    clock = Clock(SLOW, LAYOUT.rows_on_device)
    timed = advise_costs.timed_of(report)
    found = advise_costs.costs(TARGET, DRAFT, LAYOUT, clock, timed)
    assert found.draft[3] + found.verify[3] == pytest.approx(45.0 / 10)
    assert found.draft[1] == pytest.approx((4.5 - 3.0) / 3)
    steps["loop_step_seconds"] = 4.0  # the run was at half the pace
    report["results"]["overall"][f"fixed:{DRAFT.source}:3"]["decode_seconds"] = 90.0
    slow = advise_costs.costs(TARGET, DRAFT, LAYOUT, clock, advise_costs.timed_of(report))
    assert slow.draft[3] == pytest.approx(9.0 / 2 - 3.0)
    report["results"]["overall"] = {f"fixed:{DRAFT.source}:3": rounds(5)}  # half of them were plain steps
    assert advise_costs.timed_of(report).drafting == {}


def test_a_selectors_table_has_the_prices_that_the_selector_sees():
    windows = (1, 4, 8)
    table = cost.guess((False, False, True), 0, windows)
    widths = [0, 1, 1, 1, 2, 2, 2, 2]  # indices of 1, 4 and 8
    for source in (1, 2):
        found = advise_costs.of_table(table, source, windows)
        seconds = [float(table.verify[w] + table.draft[source, k]) for k, w in enumerate(widths)]
        assert [expected.round_cost(k, found) for k in range(8)] == pytest.approx(seconds, rel=1e-5)


def test_a_calibration_that_is_stored_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    windows, names = (1, 4, 8), ("none", "lookup", DRAFT.source)
    table = cost.guess((False, False, True), 0, windows)
    sizes = {"dtype": LAYOUT.dtype, "rows": LAYOUT.rows, "windows": windows}
    assert advise_costs.measured(TARGET, DRAFT, LAYOUT, 7) is None
    store.save(store.make_key(TARGET.config, sources=names, capacity=8192, **sizes), table, 1.0)
    near = table._replace(verify=2 * table.verify)
    store.save(store.make_key(TARGET.config, sources=names, capacity=LAYOUT.context, **sizes), near, 1.0)
    found = advise_costs.measured(TARGET, DRAFT, LAYOUT, 7)
    assert found.verify == pytest.approx(advise_costs.of_table(near, 2, windows).verify)
    assert found.draft == pytest.approx(advise_costs.of_table(near, 2, windows).draft)
    others = (dataclasses.replace(LAYOUT, rows=3), 7), (dataclasses.replace(LAYOUT, dtype="float32"), 7), (LAYOUT, 5)
    assert [advise_costs.measured(TARGET, DRAFT, *other) for other in others] == [None] * 3
    assert advise_costs.measured(TARGET, find_draft("suffix", TARGET), LAYOUT, 7) is None
    assert advise_costs.measured(find_model("8b"), DRAFT, LAYOUT, 7) is None


def test_acceptance_at_a_depth_is_of_the_rounds_that_got_there():
    assert advise_acceptance.conditional([0.5, 0.2, 0.1]) == pytest.approx((0.5, 0.4, 0.5))
    assert advise_acceptance.conditional([0.5, 0.0, 0.0]) == (0.5, 0.0, 0.0)
    assert advise_acceptance.conditional([0.5, 0.6]) == (0.5, 1.0)
    tokens = expected.expected_tokens(advise_acceptance.conditional([0.5, 0.2, 0.1]), 3)
    assert tokens == pytest.approx(1 + 0.5 + 0.2 + 0.1)


def counts(proposed, accepted):
    return {"proposed": sum(proposed), "proposed_by_depth": proposed, "accepted_by_depth": accepted}


GENERATE = {"stats": {"sources": {"none": counts([], []), "lookup": counts([10, 10, 5], [8, 4])}}, "results": []}
BENCH = {
    "results": {
        "overall": {
            "plain": {"sources": {}},
            "rule": {"sources": {"lookup": counts([100], [100])}},
            "fixed:lookup:2": {"sources": {"lookup": counts([10, 10], [5, 1])}},
        }
    }
}


@pytest.mark.parametrize(("report", "rates"), [(GENERATE, (0.8, 0.5, 0.0)), (BENCH, (0.5, 0.2))])
def test_telemetry_is_read_and_fixed_modes_come_first(report, rates, tmp_path):
    (tmp_path / "t.json").write_text(json.dumps(report))
    lookup = find_draft("lookup", TARGET)
    known = advise_acceptance.match((), [lookup, DRAFT], [advise_acceptance.read(str(tmp_path / "t.json"))])
    assert known[0].rates == pytest.approx(rates)
    assert known[1] is None


def test_what_is_given_comes_before_telemetry_and_telemetry_before_a_card():
    feature = find_draft("feature", SMOLLM2)
    card = advise_acceptance.match((), [feature], [])[0]
    assert "its card" in card.origin
    said = feature.card["validation"]["engine"]["overall"]
    assert expected.expected_tokens(card.rates, 4) == pytest.approx(1 + sum(said["acceptance"]))
    told = {"stats": {"sources": {"feature": counts([4], [1])}}}
    assert advise_acceptance.match((), [feature], [told])[0].rates == (0.25,)
    assert advise_acceptance.match(("0.9",), [feature, DRAFT], [told])[1].rates == (0.9,)
    assert [k.rates for k in advise_acceptance.match(("0.9", "0.8,0.7"), [feature, DRAFT], [])] == [(0.9,), (0.8, 0.7)]
