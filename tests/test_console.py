"""What the scripts print: rows in order, each as soon as its turn comes, a blank line between two."""

from jaxspec.console import Screen


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
