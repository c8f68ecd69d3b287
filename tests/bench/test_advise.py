"""Advice: names are found, verdicts turn where they must, table and JSON agree, bad input is one sentence."""

import dataclasses
import io
import json
import math

import pytest
from rich.console import Console

from jaxspec.bench import advise_models, advise_show, advise_words, chips
from jaxspec.bench.advise import Options, advise
from jaxspec.bench.advise_models import find_draft, find_model, parameter_count
from jaxspec.models import parameter_shapes
from tests.scripts.tiny import ROOT, TINY

TARGET = find_model(str(TINY / "target"))
DRAFT = find_draft(str(TINY / "draft"), TARGET)
SIZES = Options(target="70b", drafts=("8b",), bandwidth=819.0, flops=197.0, memory=16.0, mesh="model=16")
SMOLLM2 = find_model("smollm2-135m")


@pytest.mark.parametrize(
    ("text", "count"),
    [("8b", 8e9), ("0.5B", 5e8), ("135m", 1.35e8), ("1.5t", 1.5e12), ("b", None), ("llama-3-8b", None)],
)
def test_a_size_is_read(text, count):
    assert parameter_count(text) == count


def test_names_lead_to_what_they_say():
    assert find_model("llama-3-70b").count == pytest.approx(70.55e9, rel=1e-3)
    assert find_model("llama-3-8b").count == pytest.approx(8.03e9, rel=1e-3)
    assert TARGET.count == sum(math.prod(leaf.shape) for leaf in parameter_shapes(TARGET.config).values())
    kinds = {name: find_draft(name, SMOLLM2).kind for name in ("1b", "lookup", "exit:3", "medusa", "exit", "lm:135m")}
    assert kinds == {
        "1b": "model",
        "lookup": "lookup",
        "exit:3": "exit",
        "medusa": "medusa",
        "exit": "exit",
        "lm:135m": "model",
    }
    published = ROOT / "checkpoints" / "smollm2-135m-instruct"
    for name in ("feature", f"feature:{published / 'feature'}", str(published / "feature")):
        assert find_draft(name, SMOLLM2).trained.taps == (2, 12, 24)
    assert "there is no feature of this target yet" in find_draft("feature", TARGET).note


def test_a_config_without_weights_is_enough(tmp_path):
    (tmp_path / "config.json").write_bytes((TINY / "target" / "config.json").read_bytes())
    assert find_model(str(tmp_path)).count == find_model(str(tmp_path / "config.json")).count == TARGET.count


def test_vocabularies_are_compared():
    assert advise_models.vocabulary(TARGET, DRAFT)["verdict"] == "same"
    assert advise_models.vocabulary(TARGET, find_draft("lookup", TARGET))["verdict"] == "own"
    assert advise_models.vocabulary(TARGET, find_draft("8b", TARGET))["verdict"] == "unknown"
    assert advise_models.vocabulary(find_model("llama-3-8b"), DRAFT)["verdict"] == "unknown"


def test_another_vocabulary_is_not_recommended(tmp_path):
    (tmp_path / "config.json").write_bytes((TINY / "draft" / "config.json").read_bytes())
    text = (TINY / "draft" / "tokenizer.json").read_text(encoding="utf-8")
    vocabulary = json.loads(text)
    words = vocabulary["model"]["vocab"]
    first, second = sorted(words, key=words.get)[300:302]
    words[first], words[second] = words[second], words[first]
    (tmp_path / "tokenizer.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    options = Options(str(TINY / "target"), (str(tmp_path),), ("0.99",), bandwidth=10.0, context=128)
    report = advise(options)
    assert report["drafts"][0]["vocabulary"]["verdict"] == "other"
    assert f"Do not use {tmp_path}" in report["recommendation"]
    assert "different vocabularies" in report["recommendation"]


def test_sizes_and_a_bandwidth_are_enough_and_right_by_hand():
    report = advise(dataclasses.replace(SIZES, acceptance=("0.8",), mesh=None, memory=None, flops=None))
    (draft,) = report["drafts"]
    assert report["target"]["plain_seconds"] == pytest.approx(140e9 / 819e9)
    steps = 1 + 3 * 8 / 70
    tokens = 1 + 0.8 + 0.64 + 0.512
    row = draft["choices"][2]
    assert (row["cost"], row["tokens"], row["speedup"]) == pytest.approx((steps, tokens, tokens / steps))
    assert draft["memory"]["fits"] is None
    assert draft["best"]["speedup"] == max(row["speedup"] for row in draft["choices"])
    assert draft["break_even"]["acceptance"] == min(row["break_even"] for row in draft["choices"])
    assert draft["break_even"]["acceptance"] == pytest.approx(8 / 70)  # one draft: 1 + a = 1 + 8 / 70
    assert f"Use 8b with lookahead {draft['best']['lookahead']}" in report["recommendation"]


def test_the_verdict_turns_with_acceptance_memory_and_rows():
    whole = advise(SIZES)["recommendation"]
    assert "The target with 8b does not fit, by 8.75 GB" in whole  # 140 / 16 + 16 of 16
    assert "it would with --shard-drafts" in whole
    assert "Do not use 8b: it cannot pay" in whole
    split = dataclasses.replace(SIZES, shard_drafts=True, acceptance=("0.8",))
    assert "Use 8b with lookahead" in advise(split)["recommendation"]
    assert (
        "Do not use 8b: at an acceptance of 0.05"
        in advise(dataclasses.replace(split, acceptance=("0.05",)))["recommendation"]
    )
    assert "Its own is not known" in advise(dataclasses.replace(split, acceptance=()))["recommendation"]
    (draft,) = advise(split)["drafts"]
    assert f"With {draft['rows_limit']} rows and more" in advise(split)["recommendation"]
    for factor, pays in ((1, False), (0.5, True)):
        rows = int(draft["rows_limit"] * factor)
        assert advise_words.pays(advise(dataclasses.replace(split, rows=rows))["drafts"][0]) == pays


def test_chips_and_topologies_are_known():
    report = advise(Options("llama-3-70b", ("llama-3-8b",), chip="v5e:4x4", context=1024))
    assert (report["layout"]["model"], report["device"]["memory"], report["device"]["flops"]) == (16, 16e9, 197e12)
    assert any("8 key-value heads do not divide model=16" in note for note in report["notes"])
    assert chips.named("h200") == (chips.CHIPS["h200"], None)


def test_this_machine_is_measured_unless_its_speed_is_given(monkeypatch):
    here = chips.Chip("this machine", 8 * chips.GB, 1e10, 1e11)
    asked = []
    monkeypatch.setattr(chips, "host", lambda dtype: asked.append(str(dtype)) or here)
    options = Options(str(TINY / "target"), context=64)
    report = advise(dataclasses.replace(options, mesh="model=2"))
    assert (report["device"]["bandwidth"], report["device"]["memory"]) == (5e9, 4e9)  # two share it
    assert report["layout"]["dtype"] == "float32"
    advise(dataclasses.replace(options, chip="cpu", bandwidth=1.0, flops=1.0))
    advise(dataclasses.replace(options, bandwidth=1.0))
    assert asked == ["float32"]


def test_a_machine_can_be_measured():
    found = chips.host(read_bytes=1 << 22, rounds=1)
    assert found.memory > 1e8
    assert 1e7 < found.bandwidth < 1e13
    assert 1e7 < found.flops < 1e15


def rows_of(table) -> list[list[str]]:
    """Cells of a table as it is printed, the header left out."""
    printed = io.StringIO()
    Console(file=printed, width=400).print(table)
    lines = [line for line in printed.getvalue().splitlines() if line.startswith("│")]
    assert lines
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_table_and_json_say_the_same_numbers():
    options = dataclasses.replace(SIZES, drafts=("8b", "lookup"), acceptance=("0.8", "0.6,0.5"), shard_drafts=True)
    report = json.loads(json.dumps(advise(options), allow_nan=False))
    overview, first, second, memory, *said = advise_show.tables(report)
    for row, draft in zip(rows_of(overview), report["drafts"], strict=True):
        best, least = draft["best"], draft["break_even"]
        assert row[0] == draft["name"]
        assert row[3] == ("never" if least is None else f"{least['acceptance']:.3f}")
        assert row[4:7] == [str(best["lookahead"]), f"{best['tokens']:.2f}", f"{best['speedup']:.2f}"]
    for table, draft in ((first, report["drafts"][0]), (second, report["drafts"][1])):
        for row, choice in zip(rows_of(table), draft["choices"], strict=True):
            own = None if choice["break_even"] is None else round(choice["break_even"], 3)
            assert int(row[0]) == choice["lookahead"]
            assert [float(cell) for cell in row[1:4]] == pytest.approx(
                [1e3 * choice["draft_seconds"], 1e3 * choice["verify_seconds"], choice["cost"]], rel=1e-2
            )
            assert (None if row[4] == "never" else float(row[4])) == own
            assert row[5:8] == [f"{choice['at'][a]:.2f}" for a in advise_show.SHOWN]
            assert row[8:] == [f"{choice['tokens']:.2f}", f"{choice['speedup']:.2f}"]
    held = [report["memory"], *(draft["memory"] for draft in report["drafts"])]
    for row, each in zip(rows_of(memory), held, strict=True):
        values = [each[part] for part in (*advise_show.PARTS, "spare")]
        assert row[1:] == ["-" if value is None else f"{value / 1e9:.3f}" for value in values]
    assert " ".join(said[-1].split()) == " ".join(report["recommendation"].split())


def test_other_numbers_make_other_tables():
    one, other = (advise(dataclasses.replace(SIZES, acceptance=(a,))) for a in ("0.8", "0.7"))
    assert rows_of(advise_show.choices(one["drafts"][0], 1.0)) != rows_of(advise_show.choices(other["drafts"][0], 1.0))


TINY_ONE = {"target": str(TINY / "target"), "bandwidth": 10.0}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rows": 0}, "rows is 0; it must be 1 or more"),
        ({"context": 0}, "context is 0"),
        ({"context": 4096}, "context is 4096; the target has 2048 positions"),
        ({"lookahead": 0}, "lookahead is 0"),
        ({"lookahead": 99}, "lookahead 99 is not in 0 to 15"),
        ({"bandwidth": -1.0}, "bandwidth is -1.0"),
        ({"flops": 0.0}, "flops is 0.0"),
        ({"memory": float("nan")}, "memory is nan"),
        ({"overhead": -1.0}, "overhead is -1.0"),
        ({"dtype": "int8"}, "dtype 'int8' is unknown"),
        ({"chip": "v9"}, "chip 'v9' is unknown; choose cpu, v5e"),
        ({"chip": "v5e:0x4"}, "has no devices"),
        ({"chip": "h200:2x2"}, "chip 'h200:2x2' is unknown"),
        ({"chip": "v5e:2x2", "mesh": "model=2"}, "takes 2 devices and v5e:2x2 has 4"),
        ({"mesh": "rows=2"}, "mesh 'rows=2' has axis 'rows'"),
        ({"acceptance": ("1.2",)}, "acceptance 1.2 is no probability"),
        ({"acceptance": ("high",)}, "acceptance 'high' is no number"),
        ({"acceptance": ("0.5", "0.6")}, "there are 2 of --acceptance and 1 drafts"),
        ({"drafts": ("lookup", "lookup")}, "have a name twice"),
        ({"drafts": ("oracle",)}, "oracle: no such file or folder"),
        ({"drafts": ("exit:4",)}, "exit:4 asks for 4 layers; the target has 4"),
        ({"drafts": ("jacobi:1",)}, "draft source 'jacobi:1' is unknown"),
        ({"drafts": (str(ROOT / "checkpoints/smollm2-135m-instruct/medusa"),)}, "is for a target of width 576"),
        ({"target": "8b", "drafts": ("exit:2",)}, "only the size is known"),
        ({"target": "0b"}, "has no parameters"),
        ({"target": "no/such/folder/at/all"}, "or a size such as 8b, or one of smollm2-135m"),
        ({"telemetry": ("missing.json",)}, "cannot read telemetry missing.json"),
        ({"telemetry": (str(TINY / "target" / "config.json"),)}, "has no counts by source"),
        ({"plot": "no/such/folder/p.png"}, "cannot write no/such/folder/p.png"),
        ({"json": str(TINY)}, "cannot write"),
    ],
)
def test_what_is_wrong_is_one_sentence_before_anything_is_measured(changes, sentence, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(chips, "host", lambda dtype: pytest.fail("it measured"))
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the sentence is looked at below
        advise(Options(**(TINY_ONE | changes)))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_plot_without_matplotlib_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("jaxspec.bench.advise.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="the plot needs matplotlib"):
        advise(Options(**TINY_ONE, plot=str(tmp_path / "p.png")))
