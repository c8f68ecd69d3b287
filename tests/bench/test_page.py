"""The page of a run shows the numbers of its report and nothing else, as text, with nothing from elsewhere."""

import json
import re
from html.parser import HTMLParser

import pytest

from jaxspec.bench.contenders import MODE, PEER, PLAIN, Contender
from jaxspec.bench.micro import costs
from jaxspec.bench.page import page, rates
from jaxspec.bench.run import Options, assemble
from jaxspec.text import Case
from tests.bench.test_bench import synthetic
from tests.telemetry.browser import opened
from tests.telemetry.test_page import Parsed, foreign
from tests.telemetry.traces import HOSTILE

KINDS = {PLAIN: PLAIN, "rule": MODE, "peer:a": PEER, "peer:b": PEER}


def a_report(names=("x", "y", "y"), sources=("none", "lookup")) -> dict:
    """Of the synthetic timings: plain, a mode and two peers on prompts of two categories."""
    timings, contenders, _ = synthetic()
    contenders = [Contender(c.name, c.kind, c.run, tuple(sources), c.windows) for c in contenders]
    cases = [Case(f"p{i}", category, "prompt") for i, category in enumerate(names)]
    steps = costs({1: 0.02, 2: 0.03}, {"fast": 2e9}, weights=20_000_000)
    asked = Options("prompts.jsonl", target="some/where/model", drafts=("lookup",), report="out.html")
    report = assemble(asked, cases, [[1, 2]] * 3, contenders, timings, steps)
    made = {"commit": "abc+", "date": "today", "versions": {"jax": "1.2.3", "torch": None}, "cores": 2, "load": 0.5}
    report |= {"capacity": 128, "load_before": 0.25, "provenance": made | {"devices": ["cpu cpu"]}}
    return json.loads(json.dumps(report))


class Tables(HTMLParser):
    """The cells of every table, as text."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.tables: list[list[list[str]]] = []
        self._cell = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("th", "td"):
            self.tables[-1][-1].append("")
            self._cell = True

    def handle_endtag(self, tag):
        self._cell = self._cell and tag not in ("th", "td")

    def handle_data(self, data):
        if self._cell:
            self.tables[-1][-1][-1] += data


def groups(report: dict) -> list[tuple[str, dict]]:
    return [("overall", report["results"]["overall"]), *report["results"]["categories"].items()]


def test_every_category_and_contender_has_its_numbers():
    report = a_report()
    head, *lines = Tables(page(report)).tables[0]
    assert head[:4] == ["category", "who", "tok/s", "decoding"]
    expected = []
    for category, rows in groups(report):
        for name, row in rows.items():
            speeds = [f"{row[key]:.1f}" for key in ("tokens_per_second", "decode_tokens_per_second")]
            ratios = [f"{row[key]:.2f}" for key in ("tokens_per_second_to_plain", "decode_tokens_per_second_to_plain")]
            accepted = ["100%", "1.00"] if name == "rule" else ["-", "-"]
            expected.append([category, name, *speeds, *ratios, f"{row['mean_accepted_tokens']:.2f}", *accepted])
    assert lines == expected
    assert ["x", "rule", "5.0", "10.0", "5.00", "5.00", "2.00", "100%", "1.00"] in lines


def test_every_source_has_its_telemetry():
    report = a_report()
    _, *lines = Tables(page(report)).tables[1]
    expected = []
    for category, about in report["telemetry"]["rule"]["domains"].items():
        row = about["sources"]["lookup"]
        told = [str(row["rounds"]), f"{row['accepted']}/{row['proposed']}", f"{row['mean_accepted_tokens']:.2f}"]
        expected.append([category, "lookup", *told, f"{row['seconds']:.2f}", "100%", f"{row['tokens_won']:+.1f}"])
    assert lines == expected


def test_windows_answers_and_provenance_are_there():
    report = a_report()
    report["equality"]["rule"]["mismatches"] = [{"prompt": "p1", "position": 4}]
    text = page(report, "python scripts/bench.py --prompts a.jsonl")
    *_, windows, answers = Tables(text).tables
    assert windows[1:] == [["1", "20.00", "1.00"], ["2", "30.00", "1.50"]]
    assert answers[1:] == [[name, "9", "9"] for name in report["equality"]]
    shown = " ".join(re.sub(r"<[^>]+>", " ", text[: text.index('<script type="application/json"')]).split())
    for words in ("commit abc+", "jax 1.2.3", "load before 0.25", "rule: prompt p1, token 5", "target some/where/model",
                  "python scripts/bench.py --prompts a.jsonl", "Benchmark of model", "cpu cpu"):  # fmt: skip
        assert words in shown, words
    assert "torch" not in shown


def test_bars_are_as_high_as_the_speeds():
    report = a_report()
    bars = [given for tag, given in Parsed(page(report)).tags if tag == "rect"]
    speeds = [row["decode_tokens_per_second"] for _, rows in groups(report) for row in rows.values()]
    assert [float(bar["height"]) for bar in bars] == pytest.approx([100 * s / max(speeds) for s in speeds], abs=0.01)
    styles = [bar["class"].split()[1] for bar in bars]
    assert styles == ["s0", "s1", "s2", "s3"] * 3, "a contender has one colour everywhere"
    assert [float(bar["x"]) for bar in bars] == sorted(float(bar["x"]) for bar in bars)


def test_acceptance_by_depth_adds_up_sources_and_draws_what_it_says():
    by_depth = {
        "a": {"proposed_by_depth": [4, 2], "accepted_by_depth": [3]},
        "b": {"proposed_by_depth": [4], "accepted_by_depth": [1]},
    }
    assert rates({"sources": by_depth}) == [0.5, 0.0]
    assert rates({"sources": {}}) == []
    report = a_report()
    report["results"]["overall"]["rule"]["sources"] = by_depth
    lines = [given["d"] for tag, given in Parsed(page(report)).tags if tag == "path" and given["class"] == "line s1"]
    assert lines[0] == "M500.0 50.00L1000.0 100.00"


def test_the_page_carries_the_report():
    report = a_report()
    assert json.loads(Parsed(page(report)).scripts[0]) == report


def test_a_run_without_drafts_has_a_page():
    report = a_report()
    for _, rows in groups(report):
        rows["rule"]["sources"] = {"none": {"proposed_by_depth": [], "accepted_by_depth": []}}
    report["telemetry"] = {}
    text = page(report)
    assert "<h2>Acceptance</h2>" not in text
    assert "<h2>Comparison</h2>" in text


def hostile() -> dict:
    """A report whose every name is hostile."""
    text = json.dumps(a_report((HOSTILE, "y", "y"), ("none", HOSTILE)))
    for name in ("rule", "peer:a", "p1", "abc+", "today", "some/where/model", "1.2.3", "timings of rounds", "lookup"):
        text = text.replace(json.dumps(name), json.dumps(HOSTILE + name))
    return json.loads(text)


def test_names_are_text(monkeypatch):
    report = hostile()
    text = page(report, HOSTILE)
    mild = page(a_report(), "python")
    assert foreign(text, mild) == []
    assert json.loads(Parsed(text).scripts[0]) == report
    assert {row[0] for row in Tables(text).tables[0]} >= {HOSTILE, "y"}
    monkeypatch.setattr("html.escape", lambda text, quote=True: text)  # the control: unescaped, it is found
    assert {tag for tag, _ in foreign(page(report), mild)} >= {"script", "img"}


def test_nothing_comes_from_elsewhere():
    assert not re.search(r"https?:|url\(|@import|<link|\bsrc=|\bfetch\(|\bhref=", page(a_report()))
    assert "default-src 'none'" in page(a_report())


@pytest.mark.browser
def test_a_browser_shows_all_of_it_and_runs_nothing(tmp_path):
    for report in (a_report(), hostile()):
        shown = opened(tmp_path, page(report))
        assert Tables(shown).tables == Tables(page(report).replace("\r\n", "\n")).tables
        assert "<title>taken</title>" not in shown
    picture = tmp_path / "page.png"
    opened(tmp_path, page(a_report()), "", f"--screenshot={picture}", "--window-size=1200,1900")
    assert picture.stat().st_size > 50_000
