"""What the scripts print: rows in order, each as soon as its turn comes, a blank line between two."""

import io
import sys

import pytest
from rich.console import Console

from jaxspec.console import Screen
from jaxspec.run import DECODING, PREPARING


def printed(events: list[tuple], capsys) -> list[str]:
    """Standard output after each event: (row, text), or (row,) for its end."""
    screen, seen = Screen(quiet=True, text=True), []
    for event in events:
        screen.end(*event) if len(event) == 1 else screen.show(*event)
        seen.append(capsys.readouterr().out)
    return seen


def test_the_first_row_streams_and_the_second_waits(capsys):
    out = printed([(0, "a"), (1, "x"), (0, "b"), (0,), (1, "y"), (1,)], capsys)
    assert out == ["a", "", "b", "\n\nx", "y", "\n"]


def test_a_row_that_ended_early_is_printed_in_its_turn(capsys):
    out = printed([(1, "x"), (1,), (2, "p"), (0, "a"), (0,), (2,)], capsys)
    assert out == ["", "", "", "a", "\n\nx\n\np", "\n"]


def test_rows_without_text_keep_their_place(capsys):
    assert "".join(printed([(1, "x"), (1,), (0,), (2,)], capsys)) == "\n\nx\n\n\n"


def streamed(prompts: list[str], monkeypatch) -> str:
    """What a terminal shows of rows "a", "b", .. with titles, standard output and standard error together."""
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    screen = Screen(quiet=False, text=True)
    screen.console = Console(file=shown, width=100)
    screen.titles = prompts
    screen.stage(PREPARING)
    screen.stage(DECODING)
    for row in range(len(prompts)):
        screen.show(row, "abc"[row])
        screen.end(row)
    return shown.getvalue()


def test_rows_of_a_batch_have_titles_of_a_line(monkeypatch):
    long = "three [bold]" + 80 * "x"
    out = streamed(["one", "two\nlines", long], monkeypatch)
    words = f"three [bold]{47 * 'x'}…"
    assert out == f"[1 of 3] one\na\n\n[2 of 3] two lines\nb\n\n[3 of 3] {words}\nc\n"


def test_a_single_row_has_none(monkeypatch):
    assert streamed([], monkeypatch) == ""


def test_an_interruption_that_the_runtime_lost_is_not_lost():
    """A callback of the runtime swallows what the signal raises; the next text or stage raises it again, once."""
    screen = Screen(quiet=True, text=True)
    with pytest.raises(KeyboardInterrupt):
        screen._interrupt(2, None)
    with pytest.raises(KeyboardInterrupt):
        screen.show(0, "a")
    screen.show(0, "b")
    with pytest.raises(KeyboardInterrupt):
        screen._interrupt(2, None)
    with pytest.raises(KeyboardInterrupt):
        screen.stage(DECODING)


def test_closed_standard_streams_are_said(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(ValueError, match="standard output is closed"):
        Screen(quiet=True, text=True)
    Screen(quiet=True, text=False)
