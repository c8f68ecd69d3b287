"""A pipeline whose selector weighs costs measures them once, stores them, and answers as it would anyway."""

import json
from pathlib import Path

import numpy as np
import pytest

import jaxspec
from jaxspec import costs, telemetry
from jaxspec.costs import Refiner
from jaxspec.run import CALIBRATING, DECODING, ENDING, PREPARING
from jaxspec.select.cost import CostTable
from jaxspec.text.classes import token_classes

TINY = str(Path(__file__).parents[2] / "checkpoints" / "tiny" / "target")
DRAFTS = ["lookup", "exit:2"]
OPTIONS = {"drafts": DRAFTS, "select": "goodput", "lookahead": 3}
ASK = {"prompts": "It was a fine morning, and", "max_new_tokens": 24}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "costs"


def loaded(**changes):
    notes = []
    return jaxspec.load(TINY, **OPTIONS | {"note": notes.append} | changes), notes


def answered(pipeline, **changes):
    stages, done = [], []
    answer = pipeline.generate(
        **ASK | changes, on_stage=stages.append, on_progress=lambda *at: done.append(at), ignore_end=True
    )
    return answer, stages, done


@pytest.fixture(scope="module")
def plain() -> list[int]:
    return jaxspec.load(TINY, drafts=[]).generate(**ASK, ignore_end=True).results[0].tokens


def test_a_call_begins_with_what_the_last_one_has_learnt():
    pipeline, _ = loaded(costs="guess")
    assert pipeline.prior is None
    answered(pipeline)
    first = pipeline.prior
    assert float(np.sum(first.tried)) > 0
    given = pipeline.priced(pipeline.setup(sampled=False, logprobs=False), rows=1, capacity=128, prompt_ids=[1])[0]
    assert given.selector.prior is first
    assert answered(pipeline)[0].stats["compilations_after_warmup"] == 0
    assert float(np.sum(pipeline.prior.tried)) > float(np.sum(first.tried))
    plain, _ = loaded(select="rule")
    answered(plain)
    assert plain.prior is None, "it learns nothing"


def test_the_selector_knows_what_kind_of_token_came_last():
    pipeline, _ = loaded(costs="guess")
    given = pipeline.priced(pipeline.setup(sampled=False, logprobs=False), rows=1, capacity=128, prompt_ids=[1])[0]
    classes = np.asarray(given.selector.classes)
    known = token_classes(pipeline.target.tokenizer)
    assert len(classes) == pipeline.target.model.config.vocab_size
    np.testing.assert_array_equal(classes[: len(known)], known)
    assert len(set(classes.tolist())) > 2


def test_a_folder_without_what_was_trained_is_refused_by_load(tmp_path):
    for select in ("goodput", "router"):
        with pytest.raises(ValueError, match=r"has no router\.json"):
            loaded(select=f"{select}:{tmp_path}")


def test_costs_are_measured_by_the_first_call_alone(cache, plain):
    pipeline, notes = loaded()
    answer, stages, done = answered(pipeline)
    assert stages == [CALIBRATING, PREPARING, DECODING, ENDING]
    assert done[-1][0] == done[-1][1] > 0
    assert [path.suffix for path in cache.iterdir()] == [".json"]
    again, stages, done = answered(pipeline)
    assert (stages, done) == ([PREPARING, DECODING, ENDING], [])
    other, stages, _ = answered(loaded()[0])  # another process would read the file
    assert stages == [PREPARING, DECODING, ENDING]
    for each in (answer, again, other):
        assert each.results[0].tokens == plain
        assert each.stats["tokens"] == 24
        assert sum(source["rounds"] for source in each.stats["sources"].values()) == each.stats["rounds"] <= 24
        assert each.stats["compilations_after_warmup"] == 0
    assert not [line for line in notes if "stale" not in line]


def test_calibration_leaves_no_trace_in_the_answer(monkeypatch):
    """The same table, measured or given, refined by nobody: the same rounds, with the same seed."""
    monkeypatch.setattr(Refiner, "take", lambda *args: None)
    ask = {"temperature": 0.8, "seed": 3}
    pipeline, _ = loaded()
    measured, stages, _ = answered(pipeline, **ask)
    assert stages[0] == CALIBRATING
    (priced,) = pipeline.prices.known.values()
    given, stages, _ = answered(loaded(costs=priced.table)[0], **ask)
    assert stages[0] == PREPARING
    assert given.results == measured.results
    assert given.stats["rounds"] == measured.stats["rounds"]
    assert _counts(given) == _counts(measured)


def _counts(answer) -> list[tuple]:
    return [(each["rounds"], each["proposed"], each["accepted"]) for each in answer.stats["sources"].values()]


def test_given_costs_are_used_as_they_are(cache, tmp_path, plain):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"verify": [1.0, 50.0], "draft": {"exit:2": {"1": 0.0}}}))
    answer, stages, _ = answered(loaded(costs=str(path))[0])
    assert stages[0] == PREPARING
    assert not cache.exists()
    assert answer.stats["sources"]["none"]["rounds"] == 24, "where windows are that dear, nothing is drafted"
    path.write_text(json.dumps({"verify": [1.0, 1.0], "draft": {"exit:2": {"1": 0.0}}}))
    free, _, _ = answered(loaded(costs=str(path))[0])
    assert free.stats["rounds"] < 24
    guessed, _, _ = answered(loaded(costs="guess")[0])
    assert [each.results[0].tokens for each in (answer, free, guessed)] == [plain] * 3


def test_what_rounds_took_is_kept(cache, monkeypatch):
    """The clock of a call says a hundred times what calibration said: a note says so, and the table moves."""
    pipeline, notes = loaded()
    take = Refiner.take
    monkeypatch.setattr(Refiner, "take", lambda self, before, after, s: take(self, before, after, 100.0))
    answered(pipeline, max_new_tokens=96)
    (stale,) = [line for line in notes if "stale" in line]
    assert "times longer than they say; measure anew with python scripts/calibrate.py --target" in stale
    assert stale.endswith("--draft lookup --draft exit:2 --lookahead 3 --rows 1 --max-length 512 --dtype float32")
    (path,) = cache.iterdir()
    before = costs.look_up(next(iter(pipeline.prices.known)))
    assert before is not None
    np.testing.assert_allclose(before.table.verify, next(iter(pipeline.prices.known.values())).table.verify, rtol=1e-6)
    refined = json.loads(path.read_text())["verify"]["1"]
    answered(pipeline, max_new_tokens=96)
    assert json.loads(path.read_text())["verify"]["1"] > refined


def test_refining_compiles_nothing():
    pipeline, _ = loaded()
    answered(pipeline)
    before = telemetry.compilations()
    answered(pipeline)
    assert telemetry.compilations() == before


def test_rows_have_tables_of_their_own_and_can_be_measured_anew(cache):
    pipeline, _ = loaded()
    setup, one = pipeline.measure(1, 128)
    _, two = pipeline.measure(2, 128)
    assert len(list(cache.iterdir())) == 2
    assert one.key.rows == 1
    assert two.key.rows == 2
    assert one.table.draft.shape == (len(setup.sources), 4)
    assert answered(pipeline)[1][0] == PREPARING


def test_a_cache_that_cannot_be_written_is_told_of(tmp_path, monkeypatch, plain):
    monkeypatch.setattr("jaxspec.costs.first.save", lambda *args: (_ for _ in ()).throw(OSError(30, "Read-only")))
    pipeline, notes = loaded()
    assert answered(pipeline)[0].results[0].tokens == plain
    assert any(line.startswith("costs cannot be stored, and will be measured again") for line in notes)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"costs": "guess", "select": "rule"}, "costs are given, which select 'rule' does not weigh; choose goodput"),
        ({"costs": "no/such.json"}, "cannot read the cost table no/such.json"),
        ({"costs": CostTable(*[np.float32(1)] * 4)}, "verify of the cost table has shape"),
    ],
)
def test_wrong_costs_are_one_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        loaded(**options)


def test_nothing_is_measured_where_nothing_can_be_chosen(plain):
    answer, stages, _ = answered(loaded(drafts=[])[0])
    assert stages[0] == PREPARING
    assert answer.results[0].tokens == plain
