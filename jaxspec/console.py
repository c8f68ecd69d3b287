"""What the scripts share: prompts in, streamed text out, progress and tables on standard error."""

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from jaxspec import telemetry
from jaxspec.pipeline import Pipeline, check_draft, load
from jaxspec.run import Answer
from jaxspec.sampling import warpers
from jaxspec.text import Tokenizer, decode_utf8, read_prompts

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


def fail(sentence: str, status: int = 2) -> int:
    """Say on standard error why nothing came of it; the exit status."""
    sys.stderr.write(f"error: {sentence}\n")
    return status


class Screen:
    """Standard output for text, standard error for everything else."""

    def __init__(self, *, quiet: bool, text: bool):
        self.quiet, self.text = quiet, text
        self.console = Console(stderr=True, quiet=quiet)
        self._waiting: dict[int, str] = {}
        self._ended: set[int] = set()
        self._row, self._blank = 0, False

    def generate(self, args: argparse.Namespace) -> Answer:
        """Load what the arguments name and generate; every prompt is read and checked before anything is loaded."""
        prompts = self.prompts(args)
        settings = {name: getattr(args, name) for name in SAMPLING}
        warpers(1, **settings)  # refuses bad values before anything is loaded
        telemetry.keep_compilations()
        pipeline = self.load(args)
        answer = pipeline.generate(
            prompts,
            chat=args.chat,
            max_new_tokens=args.max_new_tokens,
            stop=args.stop,
            num_samples=args.num_samples,
            seed=args.seed,
            logprobs=args.logprobs,
            draft_confidence=args.draft_confidence,
            draft_temperature=args.draft_temperature,
            on_text=self.show if self.text else None,
            on_end=self.end if self.text else None,
            **settings,
        )
        if args.logprobs:
            self._logprobs(answer, pipeline.target.tokenizer)
        return answer

    def prompts(self, args: argparse.Namespace) -> list[Any]:
        """Prompts of --prompt, --prompt-file, or standard input as one prompt."""
        if args.prompt and args.prompt_file:
            raise ValueError("both --prompt and --prompt-file are given; give one of them")
        if args.prompt:
            prompts: list[Any] = args.prompt
        elif args.prompt_file:
            prompts = read_prompts(args.prompt_file)
        else:
            prompts = [decode_utf8(sys.stdin.buffer.read(), "standard input").rstrip("\n")]
        if any(prompt == "" for prompt in prompts):
            raise ValueError("the prompt is empty; give at least one character with --prompt, --prompt-file or a pipe")
        return prompts

    def load(self, args: argparse.Namespace) -> Pipeline:
        """The pipeline that the arguments name, with a progress bar a checkpoint."""
        drafts = [] if args.no_speculation else args.draft or ["lookup"]
        for draft in drafts:
            check_draft(draft)
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
                progress=told,
            )

    def show(self, row: int, text: str) -> None:
        """Print rows in order, a blank line between two: the first unfinished one as it comes, then the others."""
        self._waiting[row] = self._waiting.get(row, "") + text
        if row == self._row:
            self._flush()

    def end(self, row: int) -> None:
        """Close a row, and print what waited for it."""
        self._ended.add(row)
        while self._row in self._ended:
            self._flush()
            self._print("\n")
            self._row += 1
            self._blank = True
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
