"""What the scripts share: prompts in, streamed text out, progress and tables on standard error."""

import argparse
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.status import Status
from rich.table import Table

from jaxspec import decode, telemetry
from jaxspec.files import check_place, write_beside
from jaxspec.pipeline import Pipeline, load
from jaxspec.run import CALIBRATING, DECODING, ENDING, PREPARING, Answer
from jaxspec.sampling import warpers
from jaxspec.sources import PREFERRED, check_draft
from jaxspec.text import UNSORTED, Tokenizer, decode_utf8, read_cases, read_prompts

SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
)

WAITING = {
    CALIBRATING: "measuring what rounds cost here (once for these sources and so many rows)",
    PREPARING: "preparing (what is new is compiled, for tens of seconds, then kept)",
}
"""What somebody who watches is told at a stage."""


def fail(sentence: str, status: int = 2) -> int:
    """Say on standard error why nothing came of it; the exit status."""
    sys.stderr.write(f"error: {sentence}\n")
    return status


def command_of(script: str, arguments: Sequence[str] | None) -> str:
    """The command that a script was started with, for people to repeat; `arguments` None are the process's own."""
    return shlex.join(["python", f"scripts/{script}", *(sys.argv[1:] if arguments is None else arguments)])


def attempt(work: Callable[[], object], *, interrupted: str) -> int:
    """Do the work of a script; the exit status. What goes wrong is one sentence on standard error.

    Args:
        interrupted: what is left when Ctrl-C comes, for people.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    telemetry.keep_compilations()
    try:
        work()
    except ValueError as error:
        return fail(str(error))
    except OSError as error:
        return fail(str(error), 1)
    except KeyboardInterrupt:
        return fail(f"interrupted; {interrupted}", 130)
    return 0


class Screen:
    """Standard output for text, standard error for everything else."""

    def __init__(self, *, quiet: bool, text: bool):
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        self.quiet, self.text = quiet, text
        self.console = Console(stderr=True, quiet=quiet)
        self._waiting: dict[int, str] = {}
        self._ended: set[int] = set()
        self._row, self._blank = 0, False
        self.titles: list[str] = []
        self._status: Status | None = None
        self._notes: list[str] = []
        self._interrupted = False
        self._pending: Callable[[], object] | None = None
        if sys.stdout is None:
            raise ValueError("standard output is closed; open it, or redirect it to a file")

    def generate(self, args: argparse.Namespace) -> Answer:
        """Load what the arguments name and generate; every prompt is read and checked before anything is loaded."""
        prompts = self.prompts(args)
        each = [prompt for prompt in prompts for _ in range(max(1, args.num_samples))]
        self.titles = [str(prompt) for prompt in each] if self.text and len(each) > 1 else []
        settings = {name: getattr(args, name) for name in SAMPLING}
        warpers(1, **settings)  # refuses bad values before anything is loaded
        for place in (args.trace, args.telemetry):
            if place is not None:
                check_place(place)
        domain = None if args.telemetry is None else self.domains(args)
        telemetry.keep_compilations()
        pipeline = self.load(args)
        options = ("chat", "max_new_tokens", "stop", "num_samples", "seed", "logprobs")
        told = {"on_text": self.show, "on_end": self.end} if self.text else {"on_text": lambda row, text: self._check()}
        before = signal.getsignal(signal.SIGINT)
        if before is not signal.SIG_IGN:  # as a shell's background jobs have it
            signal.signal(signal.SIGINT, self._interrupt)
        try:
            answer = pipeline.generate(
                prompts,
                draft_confidence=args.draft_confidence,
                draft_temperature=args.draft_temperature,
                trace=args.trace is not None,
                domain=domain,
                on_stage=self.stage,
                on_progress=self.progress,
                defer=True,
                **{name: getattr(args, name) for name in options},
                **told,
                **settings,
            )
        finally:
            signal.signal(signal.SIGINT, before)
            self._stop_waiting()
        self._pending = pipeline.pending
        self._hint(answer, args, chats=bool(pipeline.target.tokenizer.chat_template))
        if args.logprobs:
            self._logprobs(answer, pipeline.target.tokenizer)
        return answer

    def save(self, answer: Answer, args: argparse.Namespace) -> None:
        """Print the object of --json, and write the page of --trace and the file of --telemetry."""
        if args.json:
            self._print(f"{json.dumps(self.as_json(answer))}\n")
        if answer.trace is not None:
            write_beside(args.trace, telemetry.page(answer.trace))
            self._notes.append(f"the trace is in {args.trace}")
        if args.telemetry is not None and answer.by_domain is not None:
            write_beside(args.telemetry, answer.by_domain.written(args.telemetry))
            self._notes.append(f"telemetry by kind of text and source is in {args.telemetry}")

    def prompts(self, args: argparse.Namespace) -> list[Any]:
        """Prompts of --prompt, --prompt-file, or standard input as one prompt."""
        if args.prompt and args.prompt_file:
            raise ValueError("both --prompt and --prompt-file are given; give one of them")
        if args.prompt:
            prompts: list[Any] = args.prompt
        elif args.prompt_file:
            prompts = read_prompts(args.prompt_file)
        else:
            if sys.stdin is None:
                raise ValueError("standard input is closed; give --prompt or --prompt-file")
            prompts = [decode_utf8(sys.stdin.buffer.read(), "standard input").replace("\r\n", "\n").rstrip("\n")]
        if any(prompt == "" for prompt in prompts):
            raise ValueError("the prompt is empty; give at least one character with --prompt, --prompt-file or a pipe")
        return prompts

    def domains(self, args: argparse.Namespace) -> list[str | None] | None:
        """Kinds of text that --telemetry tells apart: the categories of --prompt-file; checks the file's ending."""
        telemetry.check_form(args.telemetry)
        if not args.prompt_file:
            return None
        return [None if case.category == UNSORTED else case.category for case in read_cases(args.prompt_file)]

    def load(self, args: argparse.Namespace) -> Pipeline:
        """The pipeline that the arguments name, with a progress bar a checkpoint."""
        for draft in args.draft or ():
            check_draft(draft)
        decode.windows_for(args.lookahead)  # checked also where --no-speculation sets them aside
        decode.check_select(args.select, args.draft or ["lookup", *PREFERRED], args.lookahead)
        drafts = [] if args.no_speculation else args.draft
        columns = (TextColumn("loading {task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        drawn = self.console.is_terminal and not self.quiet
        with Progress(*columns, console=self.console, transient=True, disable=not drawn) as bar:
            tasks: dict[str, Any] = {}

            def told(name: str, done: int, total: int) -> None:
                if name not in tasks:
                    tasks[name] = bar.add_task(Path(name).name, total=total)
                bar.update(tasks[name], completed=done)

            return load(
                args.target,
                drafts=drafts,
                select="rule" if args.no_speculation else args.select,
                lookahead=args.lookahead,
                verify=args.verify,
                dtype=args.dtype,
                mesh=args.mesh,
                costs=None if args.no_speculation else args.costs,
                clusters=None if args.no_speculation else args.clusters,
                progress=told,
                note=lambda line: self.console.print(line, style="dim", markup=False, highlight=False),
            )

    def stage(self, name: str) -> None:
        """Say what is being waited for, where somebody watches; then the title of the first row."""
        if name in WAITING and self.console.is_terminal and not self.quiet:
            self._stop_waiting()
            self._status = self.console.status(WAITING[name])
            self._status.start()
        if name == ENDING:
            self._interrupted = False  # it has done what it was for
        self._check()
        if name == DECODING:
            self._stop_waiting()
            self._title()

    def progress(self, done: int, total: int) -> None:
        """Say how many of the measurements are done, where somebody watches."""
        if self._status is not None:
            self._status.update(f"{WAITING[CALIBRATING]}: {done} of {total}")
        self._check()

    def _interrupt(self, number: int, frame: object) -> None:
        """Ctrl-C: raise as Python does, and remember it where that is lost in a callback of the runtime."""
        self._interrupted = True
        raise KeyboardInterrupt

    def _check(self) -> None:
        if self._interrupted:
            raise KeyboardInterrupt

    def _stop_waiting(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _title(self) -> None:
        """Where there are several rows, say on standard error whose text follows."""
        if self._row < len(self.titles):
            if self._blank:
                self._print("\n")
                self._blank = False
            words = " ".join(self.titles[self._row].split())
            words = words if len(words) <= 60 else words[:59] + "…"
            text = f"[{self._row + 1} of {len(self.titles)}] {words}"
            self.console.print(text, style="dim", markup=False, highlight=False)

    def _hint(self, answer: Answer, args: argparse.Namespace, *, chats: bool) -> None:
        """What a reader may wonder about: texts that were cut, and none at all."""
        cut = sum(result.finish_reason == "length" for result in answer.results)
        if cut:
            whole = len(answer.results)
            what = "the answer" if whole == 1 else f"{cut} of {whole} answers"
            self._notes.append(f"{what} ended at --max-new-tokens {args.max_new_tokens}")
        empty = any(not result.text.strip() and result.finish_reason == "stop" for result in answer.results)
        if empty and not args.chat and not args.stop and chats:
            self._notes.append("an answer is empty; this target has a chat template, which --chat uses")

    def show(self, row: int, text: str) -> None:
        """Print rows in order, a blank line between two: the first unfinished one as it comes, then the others."""
        self._waiting[row] = self._waiting.get(row, "") + text
        if row == self._row:
            self._flush()
        self._check()

    def end(self, row: int) -> None:
        """Close a row, and print what waited for it."""
        self._ended.add(row)
        while self._row in self._ended:
            self._flush()
            self._print("\n")
            self._row += 1
            self._blank = True
            self._title()
        if self._row in self._waiting:
            self._flush()

    def _flush(self) -> None:
        self._print(("\n" if self._blank else "") + self._waiting.pop(self._row, ""))
        self._blank = False

    def _print(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def _logprobs(self, answer: Answer, tokenizer: Tokenizer) -> None:
        for row, result in enumerate(answer.results):
            table = Table("token", "text", "logprob", title=f"row {row}")
            for token, value in zip(result.tokens, result.logprobs or [], strict=True):
                table.add_row(str(token), repr(tokenizer.decode([token], skip_special=False)), f"{value:.4f}")
            self.console.print(table)

    def as_json(self, answer: Answer) -> dict[str, Any]:
        """The object of --json."""
        results = []
        for result in answer.results:
            row: dict[str, Any] = {
                "prompt_tokens": result.prompt_tokens,
                "tokens": result.tokens,
                "text": result.text,
                "finish_reason": result.finish_reason,
            }
            results.append(row if result.logprobs is None else row | {"logprobs": result.logprobs})
        return {"results": results, "stats": answer.stats}

    def report(self, answer: Answer) -> None:
        """The table of what each source did."""
        self.console.print(telemetry.table(answer.stats))
        if answer.by_domain is not None and set(answer.by_domain.domains) - {telemetry.ALL}:
            self.console.print(answer.by_domain.as_table())
        for note in self._notes:
            self.console.print(note, markup=False, highlight=False)
        self._measure()

    def _measure(self) -> None:
        """Measure what the answer did not wait for; Ctrl-C leaves it to the next time."""
        if self._pending is None:
            return
        sys.stdout.flush()
        if not self.console.is_terminal:
            self.console.print(f"{WAITING[CALIBRATING]}; Ctrl-C leaves it to the next time", style="dim")
        try:
            self._pending()
        except KeyboardInterrupt:
            pass
        finally:
            self._stop_waiting()
