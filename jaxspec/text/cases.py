"""The prompts of a run: the first few of every category of a file."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from jaxspec.text.prompts import decode_utf8, read_prompts

UNSORTED = "all"
"""Category of a prompt that names none."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One prompt of a run."""

    name: str  # the record's id, else its line's number
    category: str
    prompt: str | list[dict[str, Any]]  # text, or the messages of a chat


def read_cases(path: str | Path, *, per_category: int | None = None) -> list[Case]:
    """Prompts of a .jsonl file ("prompt" or "messages", with "category" and "id" where it has them) or of a .txt file.

    Args:
        per_category: how many of each category, from the top of the file; all where None. The file's order is kept.

    Raises:
        ValueError: what `read_prompts` refuses, or a category that is no text (file and line named).
    """
    if per_category is not None and per_category < 1:
        raise ValueError(f"per_category is {per_category}; it must be 1 or more")
    prompts = read_prompts(path)  # refuses what is malformed
    lines = enumerate(decode_utf8(Path(path).read_bytes(), str(path)).split("\n"), 1)
    labels = [_label(line, number, Path(path)) for number, line in lines if line.strip()]
    cases: list[Case] = []
    taken: dict[str, int] = {}
    for (name, category), prompt in zip(labels, prompts, strict=True):
        taken[category] = taken.get(category, 0) + 1
        if per_category is None or taken[category] <= per_category:
            cases.append(Case(name, category, prompt))
    return cases


def _label(line: str, number: int, path: Path) -> tuple[str, str]:
    """Name and category of a line that holds a prompt."""
    if path.suffix != ".jsonl":
        return str(number), UNSORTED
    record = json.loads(line)
    category = record.get("category", UNSORTED)
    if not isinstance(category, str) or not category:
        raise ValueError(f'{path}, line {number} has the category {category!r}; write a text, or leave "category" out')
    return str(record.get("id", number)), category
