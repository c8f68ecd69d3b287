"""scripts/generate.py --trace: a page beside the usual output, whole or not at all."""

import html
import json
import re

import pytest

from jaxspec.console import Screen
from scripts.generate import main
from tests.scripts.tiny import FAST, OTHER, PAIR, PROMPT, TARGET

ONE = [*FAST, "--prompt", PROMPT]
SPAN = re.compile(r'<span class="t [^>]*>(.*?)</span>', re.DOTALL)


def text_of(page: str) -> list[str]:
    """The text of each row's tokens."""
    rows = re.findall(r'<div class="text".*?</div>', page, re.DOTALL)
    return [html.unescape(re.sub(r"<[^>]*>", "", "".join(SPAN.findall(row)))) for row in rows]


@pytest.mark.parametrize("flags", [[], ["--quiet"], ["--json"], ["--json", "--quiet"]])
def test_the_page_holds_what_was_printed_and_what_was_printed_stays_as_it_was(flags, run, results, tmp_path):
    file = tmp_path / "out.html"
    printed = run(*ONE, *flags, "--trace", str(file))
    (usual,) = results(*ONE)
    if "--json" in flags:
        assert json.loads(printed.out)["results"] == [usual]
    else:
        assert printed.out == usual["text"] + "\n"
    assert (printed.err == "") == ("--quiet" in flags)
    assert ("out.html" in printed.err.replace("\n", "")) == ("--quiet" not in flags)
    assert text_of(file.read_text(encoding="utf-8")) == [usual["text"]]
    assert [path.name for path in tmp_path.iterdir()] == ["out.html"]


def test_a_batch_has_a_section_a_row_with_its_prompt(results, tmp_path):
    file = tmp_path / "out.html"
    answers = results(*PAIR, "--prompt", PROMPT, "--prompt", OTHER, "--trace", str(file))
    shown = file.read_text(encoding="utf-8")
    assert text_of(shown) == [answer["text"] for answer in answers]
    assert shown.count("<section") == 2
    prompts = [html.unescape(re.sub(r"<[^>]*>", "", each)) for each in re.findall("<pre>.*?</pre>", shown, re.DOTALL)]
    assert prompts == [PROMPT, OTHER]


def test_an_older_page_is_replaced(run, tmp_path):
    file = tmp_path / "out.html"
    file.write_text("old")
    run(*ONE, "--quiet", "--trace", str(file))
    assert text_of(file.read_text(encoding="utf-8"))


def test_ctrl_c_leaves_the_page_of_what_there_is(results, tmp_path, monkeypatch, capsys):
    (whole,) = results(*ONE)
    shown = []

    def interrupt(screen, row, text):
        shown.append(text)
        if len(shown) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Screen, "show", interrupt)
    file = tmp_path / "out.html"
    assert main([*ONE, "--trace", str(file)]) == 130
    (text,) = text_of(file.read_text(encoding="utf-8"))
    assert 0 < len(text) < len(whole["text"])
    assert whole["text"].startswith(text)
    assert "Ended: interrupted" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("place", "sentence"),
    [("", "'' names no file"), (".", "names no file"), ("no/such/out.html", "there is no folder")],
)
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_loaded(place, sentence, capsys, monkeypatch):
    monkeypatch.setattr("jaxspec.console.load", lambda *args, **options: pytest.fail("it loaded"))
    assert main([*TARGET, "--prompt", "a", "--trace", place]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert sentence in err


def test_a_folder_that_is_read_only_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("jaxspec.console.load", lambda *args, **options: pytest.fail("it loaded"))
    monkeypatch.setattr("jaxspec.console.os.access", lambda *args: False)  # root may write everywhere
    assert main([*TARGET, "--prompt", "a", "--trace", str(tmp_path / "out.html")]) == 2
    assert "read-only" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_to_the_end_leaves_the_older_one(tmp_path, capsys, monkeypatch):
    file = tmp_path / "out.html"
    file.write_text("old")

    def full(self, text, **options):
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr("pathlib.Path.write_text", full)
    assert main([*ONE, "--json", "--trace", str(file)]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["results"], "the answer is not lost with the page"
    assert err.endswith("out.html cannot be written: No space left on device; choose another place\n")
    assert file.read_text() == "old"
