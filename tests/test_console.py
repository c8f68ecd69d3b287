"""What the scripts print: rows in order, each as soon as its turn comes, a blank line between two."""

import argparse
import io
import signal
import sys
from pathlib import Path

import pytest
from rich.console import Console

from jaxspec.console import Screen
from jaxspec.run import CALIBRATING, DECODING, ENDING, PREPARING, Answer, Result
from scripts.generate import main

TINY = str(Path(__file__).parents[1] / "checkpoints" / "tiny" / "target")


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


def test_who_watches_is_told_what_is_waited_for():
    screen, shown = Screen(quiet=False, text=True), io.StringIO()
    screen.console = Console(file=shown, width=100, force_terminal=True)
    for step in (
        lambda: screen.stage(CALIBRATING),
        lambda: screen.progress(3, 12),
        lambda: screen.stage(PREPARING),
        lambda: screen.stage(DECODING),
    ):
        step()
        if screen._status is not None:
            screen._status._live.refresh()
    seen = shown.getvalue()
    places = [seen.index(words) for words in ("measuring what rounds cost", "3 of 12", "preparing")]
    assert places == sorted(places)
    assert screen._status is None


def test_an_interruption_that_the_runtime_lost_is_not_lost():
    """A callback of the runtime swallows what the signal raises; what comes next raises it again, until rounds end."""
    screen = Screen(quiet=True, text=True)
    with pytest.raises(KeyboardInterrupt):
        screen._interrupt(2, None)
    for again in (lambda: screen.show(0, "a"), lambda: screen.stage(DECODING)):
        with pytest.raises(KeyboardInterrupt):
            again()
    screen.stage(ENDING)
    screen.show(0, "what was held back is shown")


def test_an_interrupted_run_shows_what_was_held_back(capsys, monkeypatch):
    """Every letter may begin one of the stop strings, so some text is held back whenever the signal comes."""
    printed = Screen._print

    def interrupt_once(self, text):
        printed(self, text)
        monkeypatch.setattr(Screen, "_print", printed)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Screen, "_print", interrupt_once)
    heeded = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    stops = [word for letter in "abcdefghijklmnopqrstuvwxyz ,.;\n" for word in ("--stop", f"{letter}\0")]
    options = ["--no-speculation", "--max-new-tokens", "400", "--min-tokens", "400"]
    try:
        assert main(["--target", TINY, "--prompt", "The old man", *options, *stops]) == 130
    finally:
        signal.signal(signal.SIGINT, heeded)
    out, err = capsys.readouterr()
    assert out.strip()
    assert "tok/s" in err
    assert "error" not in err


@pytest.mark.parametrize(
    ("finish", "text", "chat", "notes"),
    [
        ("length", "a", False, ["the answer ended at --max-new-tokens 5"]),
        ("stop", "", False, ["an answer is empty; this target has a chat template, which --chat uses"]),
        ("stop", "", True, []),
        ("stop", "a", False, []),
    ],
)
def test_a_reader_is_told_why_a_text_ends(finish, text, chat, notes):
    screen = Screen(quiet=True, text=True)
    answer = Answer([Result(1, [2], text, finish, None)], {})
    args = argparse.Namespace(max_new_tokens=5, chat=chat, stop=[])
    screen._hint(answer, args, chats=True)
    assert screen._notes == notes


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--select", "bandit"], "select 'bandit' is unknown"),
        (["--lookahead", "99"], "lookahead 99 is not in 0 to 15"),
        (["--draft", "magic"], "draft source 'magic' is unknown"),
    ],
)
def test_no_speculation_hides_no_mistake(flags, said, capsys):
    assert main(["--target", TINY, "--prompt", "x", "--no-speculation", *flags]) == 2
    assert said in capsys.readouterr().err


def test_lines_of_a_pipe_from_windows_end_like_others(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\r\ntwo\r\n")))
    args = argparse.Namespace(prompt=None, prompt_file=None)
    assert Screen(quiet=True, text=True).prompts(args) == ["one\ntwo"]


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_closed_standard_output_is_said(flags, capsys, monkeypatch):
    with monkeypatch.context() as closed:
        closed.setattr(sys, "stdout", None)
        assert main(["--target", TINY, "--prompt", "x", *flags]) == 2
    assert capsys.readouterr().err == "error: standard output is closed; open it, or redirect it to a file\n"


def test_closed_standard_input_is_said(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["--target", TINY]) == 2
    assert "standard input is closed; give --prompt" in capsys.readouterr().err
