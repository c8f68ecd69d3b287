"""Progress of long runs on standard error: a bar on a terminal, a line now and then in a log."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

EVERY = 30.0
"""Seconds between two lines of a log."""

Told = Callable[..., None]


@contextmanager
def bar(what: str) -> Iterator[Told]:
    """Yields told(done, total, tokens, note=""): how far, and the tokens worked on so far, for tokens/s."""
    console, began = Console(stderr=True), time.perf_counter()
    said = began

    def text(tokens: int, note: str) -> str:
        rate = tokens / max(time.perf_counter() - began, 1e-9)
        return f"{what} {rate:,.0f} tok/s {note}".rstrip()

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=console, disable=not console.is_terminal) as shown:
        task = shown.add_task(what, total=None)

        def told(done: int, total: int, tokens: int, note: str = "") -> None:
            nonlocal said
            shown.update(task, description=text(tokens, note), completed=done, total=total)
            now = time.perf_counter()
            if not console.is_terminal and (now - said > EVERY or done == total):
                said, left = now, (now - began) * (total - done) / max(done, 1)
                sys.stderr.write(f"{text(tokens, note)}: {done} of {total}, {left:.0f} s left\n")

        yield told
