"""From a file of prompts to a folder of records."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from jaxspec.bench.record import Record, save
from jaxspec.bench.recorder import Told, record_cases
from jaxspec.decode import DEFAULT_LOOKAHEAD
from jaxspec.pipeline import load
from jaxspec.sources import check_draft
from jaxspec.text import read_cases


@dataclasses.dataclass(frozen=True)
class RecordOptions:
    """What is recorded, and where it goes."""

    prompts: str
    out: str | None
    target: str = "smollm2-135m-instruct"
    drafts: Sequence[str] | None = None  # as in `jaxspec.load`
    per_category: int | None = None  # prompts of each category; all where None
    max_new_tokens: int = 96
    lookahead: int = DEFAULT_LOOKAHEAD
    temperature: float = 0.0
    dtype: str = "float32"
    seed: int = 0


def record_folder(options: RecordOptions, told: Told) -> list[Record]:
    """Record every prompt and write the folder.

    Raises:
        ValueError: bad input, before anything is loaded.
    """
    if options.out is None:
        raise ValueError("records need a folder to go to; give --out")
    if Path(options.out).exists() and (not Path(options.out).is_dir() or any(Path(options.out).iterdir())):
        raise ValueError(f"{options.out} is there already and is no empty folder; give a new one to --out")
    if options.max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {options.max_new_tokens}; it must be 1 or more")
    for draft in options.drafts or ():
        check_draft(draft)
    cases = read_cases(options.prompts, per_category=options.per_category)
    pipeline = load(
        options.target,
        drafts=options.drafts,
        lookahead=options.lookahead,
        verify="coupled" if options.temperature > 0 else "greedy",
        dtype=options.dtype,
        progress=lambda name, done, total: told(f"loading {name}", done, total),
    )
    records, settings = record_cases(
        pipeline,
        cases,
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        seed=options.seed,
        told=told,
    )
    save(records, options.out, settings | {"prompts": Path(options.prompts).name, "dtype": options.dtype})
    return records


__all__ = ["RecordOptions", "record_folder"]
