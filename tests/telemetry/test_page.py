"""The page holds every token in order, as text and nothing else, and needs nothing from elsewhere."""

import dataclasses
import functools
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from jaxspec.telemetry import Trace, as_dict, document, page
from jaxspec.telemetry.page import stacked, style_of, token, written
from jaxspec.telemetry.svg import HIGH, WIDE, Axis, Bar, Series, svg_bars, svg_line, ticks
from tests.telemetry.browser import opened
from tests.telemetry.traces import HOSTILE, SOURCES, a_trace, long_trace

VOID = {"meta", "br", "img"}
SHAPES = {"path", "rect"}


class Parsed(HTMLParser):
    """A page's tags, checked to be nested unless `loose`, and the text of each row's tokens."""

    def __init__(self, text: str, *, loose: bool = False):
        super().__init__(convert_charrefs=True)
        self.loose = loose
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.scripts: list[str] = []
        self._token = self._script = False
        self.feed(text)
        self.close()
        assert loose or self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in VOID:
            return
        self.open.append(tag)
        kinds = (dict(attrs).get("class") or "").split()
        if tag == "div" and kinds == ["text"]:
            self.rows.append([])
        if tag == "span" and "t" in kinds:
            self.rows[-1].append("")
            self._token = True
        if tag == "script":
            self.scripts.append("")

    def handle_startendtag(self, tag, attrs):
        assert tag in SHAPES
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.loose or self.open[-1] == tag
        self.open = self.open[:-1]
        if tag == "span":
            self._token = False

    def handle_data(self, data):
        if self._token:
            self.rows[-1][-1] += data
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data


def texts(trace: Trace) -> list[list[str]]:
    return [[mark.text for each in rounds for mark in each.marks] for rounds in trace.rows]


NASTY = [HOSTILE[:9], HOSTILE[9:], "  two  blanks", "\n\n", "", "über ", "\t"]


def test_every_token_is_there_in_its_order():
    trace = a_trace(NASTY, ["a", "b", "c"])
    assert Parsed(page(trace)).rows == texts(trace)


def test_a_row_without_a_token_and_a_run_without_a_round_have_pages():
    empty = dataclasses.replace(a_trace(["a", "b"]), rows=[[]])
    assert Parsed(page(empty)).rows == [[]]
    assert "No round was run" in page(empty)


def foreign(text: str, mild: str = "") -> list[tuple[str, dict[str, str | None]]]:
    """Tags that this package does not write, or that carry what runs; `mild` is a page of its own."""
    ours = Parsed(mild or page(a_trace(["a", "b"])))
    known = {tag for tag, _ in ours.tags}
    found = Parsed(text, loose=True)
    return [
        (tag, given)
        for tag, given in found.tags
        if tag not in known or any(name.startswith("on") or name in ("src", "href", "srcset") for name in given)
    ] + [(tag, {}) for tag, _ in found.tags if tag == "script"][len(ours.scripts) :]


def hostile_everywhere() -> Trace:
    """A trace whose every string is hostile."""
    trace = a_trace(NASTY)
    rounds = [
        dataclasses.replace(
            each,
            source=HOSTILE,
            marks=tuple(dataclasses.replace(mark, text="", name=HOSTILE, source=HOSTILE) for mark in each.marks),
            signals={HOSTILE: 1.0},
        )
        for each in trace.rows[0]
    ]
    return Trace(HOSTILE, {HOSTILE: HOSTILE}, ("none", HOSTILE), [rounds], (HOSTILE,), (HOSTILE,))


def test_what_a_model_writes_is_text(monkeypatch):
    for trace in (a_trace(NASTY), hostile_everywhere()):
        shown = Parsed(page(trace))
        assert foreign(page(trace)) == []
        assert len(shown.scripts) == 2
        assert json.loads(shown.scripts[0]) == as_dict(trace)
    monkeypatch.setattr(html, "escape", lambda text, quote=True: text)  # the control: unescaped, it is found
    assert {tag for tag, _ in foreign(page(a_trace(NASTY)))} >= {"script", "img"}


def test_nothing_comes_from_elsewhere():
    text = page(a_trace(["a", "b", "c"]))
    assert not re.search(r"https?:|url\(|@import|<link|\bsrc=|\bfetch\(|XMLHttp|innerHTML", text)
    assert "default-src 'none'" in text


def test_a_mark_and_a_source_are_told_by_class_and_the_reason_in_the_legend():
    trace = a_trace(["a", "b", "c"])
    given = [tag for name, tag in Parsed(page(trace)).tags if name == "span" and (tag.get("class") or "")[:2] == "t "]
    assert [each["class"] for each in given] == ["t s0 plain", "t s1 accepted", "t s1 corrected"]
    style = page(trace)
    for mark in ("corrected", "bonus", "plain"):  # underlines that differ, so that colour is not all there is
        assert re.search(rf"^\.{mark} {{ text-decoration-style: \w+", style, re.M) or mark == "bonus"
    assert len(set(re.findall(r"text-decoration-style: (\w+)", style))) == 3


def test_a_token_without_text_is_drawn_but_no_text():
    mark = a_trace(["a", "b"]).rows[0][0].marks[0]
    for name, drawn in (('<|"end"|>', "&lt;|&quot;end&quot;|&gt;"), ("", "⋯")):
        span = token(dataclasses.replace(mark, text="", name=name), "s1")
        assert span == f'<span class="t s1 plain special" data-name="{drawn}"></span>'


def test_line_ends_and_blanks_stay_and_are_seen():
    assert written("a  b\r\n\tc") == 'a  b&#13;<i class="nl"></i>\n<i class="tab"></i>\tc'


def test_more_sources_than_colours_take_them_again():
    many = ["none", *(f"s{i}" for i in range(9))]
    assert [style_of(name, many) for name in (many[0], many[1], many[8], many[9])] == ["s0", "s1", "s8", "s1"]


# Plots


def test_ticks_are_round_and_reach_the_end():
    assert ticks(Axis("x", 7.4, steps=8)) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert ticks(Axis("x", 1.0, steps=2)) == [0, 0.5, 1.0]
    assert ticks(Axis("x", 0.0)) == [0]
    assert len(ticks(Axis("x", 3e-4))) in (4, 5)


def test_bars_are_as_wide_as_they_last_and_as_high_as_they_gave():
    bars = [Bar(0.0, 1.0, 2.0, "s1", key="0,0"), Bar(1.0, 3.0, 4.0, "s2", shadow=8.0)]
    found = [given for tag, given in Parsed(svg_bars("t", bars, Axis("x", 4.0), Axis("y", 8.0))).tags if tag == "rect"]
    assert [float(each["x"]) for each in found] == [0, WIDE / 4]
    assert [float(each["width"]) for each in found] == pytest.approx([WIDE / 4, 3 * WIDE / 4], abs=1)
    assert [float(each["height"]) for each in found] == [HIGH / 4, HIGH / 2]
    assert [float(each["y"]) + float(each["height"]) for each in found] == [HIGH, HIGH]
    assert found[0]["data-key"] == "0,0"


def test_a_line_goes_through_its_points():
    series = [Series("a<b", [(0.0, 0.0), (2.0, 1.0)], "s3"), Series("dots", [(1.0, 0.5)], dots=True), Series("no", [])]
    shown = svg_line("t", series, Axis("x", 2.0), Axis("y", 1.0))
    paths = [given for tag, given in Parsed(shown).tags if tag == "path" and given["class"] != "grid"]
    assert [(each["class"], each["d"]) for each in paths] == [
        ("line s3", "M0.0 100.00L1000.0 0.00"),
        ("dots ink", "M500.0 50.00h0"),
    ]
    assert "a&lt;b" in shown


def test_shares_are_whole():
    widths = [float(each) for each in re.findall(r"width:([\d.]+)%", stacked([("s0", 1.0), ("s1", 3.0), ("s2", 0.0)]))]
    assert widths == [25.0, 75.0]


def test_a_number_that_is_none_is_refused():
    with pytest.raises(ValueError, match="JSON"):
        document("t", "", data={"x": float("nan")})


# In a browser


@pytest.fixture
def browse(tmp_path):
    """browse(page, part) -> the page as the browser has it after its script ran."""
    return functools.partial(opened, tmp_path)


def card(shown: str) -> str:
    return re.sub(r"<[^>]+>", " ", shown[shown.index('<aside id="card"') : shown.index("</aside>")])


@pytest.mark.browser
def test_a_browser_shows_all_of_it_and_runs_no_script_of_the_models(browse):
    trace = a_trace(NASTY, ["a", "b", "c"])
    for each in (trace, hostile_everywhere()):
        shown = browse(page(each))
        assert Parsed(shown).rows == texts(each)
        assert "<title>taken</title>" not in shown
        assert 'role="tooltip" hidden=""' in shown
    loose = page(trace).replace("</main>", "<script>document.title = 'taken'</script></main>")
    assert "<title>taken</title>" not in browse(loose), "the policy lets one script run"
    policy = re.search(r"<meta http-equiv[^>]*>", loose)[0]
    assert "<title>taken</title>" in browse(loose.replace(policy, "")), "the control: it would have run"


@pytest.mark.browser
def test_a_browser_shows_what_is_known_of_a_token(browse):
    shown = browse(page(a_trace(["a", "b", "c\n", "d"])), "#r1t3")
    words = " ".join(card(shown).split())
    assert words.startswith("c↵ accepted probability 0.5 source lookup drafts 9 asked, 4 proposed, 2 accepted round 2:")
    assert "Signals margin 0.25 match lookup 3" in words
    assert "estimates tokens lookup 2.5" in words
    assert re.search(r'class="t s1 accepted same here"[^>]*tabindex="0"', shown)
    assert re.search(r'class="bar s1 here"', shown)


@pytest.mark.browser
def test_two_thousand_tokens_are_a_page_that_opens(browse, tmp_path):
    trace = long_trace(2000)
    text = page(trace)
    assert len(text) < 2_000_000
    shown = browse(text, "#r1t1999")
    assert Parsed(shown).rows == texts(trace)
    assert 'role="tooltip" hidden' not in shown
    picture = tmp_path / "page.png"
    browse(text, "", f"--screenshot={picture}", "--window-size=1280,1600")
    assert Path(picture).stat().st_size > 50_000
    assert SOURCES[1] in shown
