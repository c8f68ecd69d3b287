"""How often a draft is accepted, by depth: as it was given, as telemetry counted it, or as a draft's card says."""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxspec.bench.advise_models import Candidate
from jaxspec.select.expected import check_acceptance


class Known(NamedTuple):
    """An acceptance and where it comes from."""

    rates: tuple[float, ...]  # at each depth, once the drafts before it were accepted; the last one holds beyond
    origin: str


def parse(text: str) -> tuple[float, ...]:
    """Of "0.7", or by depth of "0.7,0.6,0.5".

    Raises:
        ValueError: what is no number from 0 to 1.
    """
    try:
        rates = tuple(float(each) for each in text.split(","))
    except ValueError:
        raise ValueError(f"acceptance {text!r} is no number; give 0.7, or 0.7,0.6,0.5 by depth") from None
    return check_acceptance(rates)


def match(texts: Sequence[str], drafts: Sequence[Candidate], files: Sequence[Mapping[str, Any]]) -> list[Known | None]:
    """What is known of each draft: what was given, else telemetry, else its card.

    Args:
        texts: of all drafts together where there is one, else of each in turn.
        files: from `read`.

    Raises:
        ValueError: a number of texts that is neither, or one that is none.
    """
    given = [parse(text) for text in texts]
    if len(given) not in (0, 1, len(drafts)):
        raise ValueError(f"there are {len(given)} of --acceptance and {len(drafts)} drafts; give one, or one a draft")
    told = [Known(rates, "as given") for rates in given * (len(drafts) if len(given) == 1 else 1)]
    return [
        said or _counted(draft, files) or _carded(draft)
        for said, draft in zip(told or [None] * len(drafts), drafts, strict=True)
    ]


def read(path: str) -> dict[str, Any]:
    """The object of `scripts/generate.py --json` or `scripts/bench.py --json`.

    Raises:
        ValueError: a file that is neither.
    """
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"cannot read telemetry {path}: {error}") from None
    if not isinstance(report, dict) or not tables(report):
        raise ValueError(
            f"{path} has no counts by source; give what scripts/generate.py --json or scripts/bench.py --json wrote"
        )
    return report


def tables(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Counts by source of every mode: of one, "", where the report is of `generate.py`."""
    stats, results = report.get("stats"), report.get("results")
    modes = (
        {"": stats} if isinstance(stats, Mapping) else results.get("overall", {}) if isinstance(results, dict) else {}
    )
    found = {name: mode.get("sources") for name, mode in modes.items() if isinstance(mode, Mapping)}
    return {name: sources for name, sources in found.items() if isinstance(sources, Mapping)}


def _counted(draft: Candidate, files: Sequence[Mapping[str, Any]]) -> Known | None:
    """Of the modes that fix the source where there are such, since others ask it only where it suits them."""
    names = {draft.source, draft.name, draft.kind} if draft.model is None else {draft.source, draft.name}
    counts = [
        (mode, row)
        for report in files
        for mode, rows in tables(report).items()
        for name, row in rows.items()
        if name in names and row.get("proposed")
    ]
    fixed = [each for each in counts if each[0].startswith(tuple(f"fixed:{name}" for name in names))]
    chosen = [row for _, row in fixed or counts]
    if not chosen:
        return None
    proposed, accepted = (_summed(row.get(key, ()) for row in chosen) for key in PAIR)
    return Known(conditional(_ratios(accepted, proposed)), f"telemetry, {proposed[0]} rounds")


PAIR = ("proposed_by_depth", "accepted_by_depth")


def _summed(rows: Any) -> list[int]:
    return [sum(each) for each in itertools.zip_longest(*rows, fillvalue=0)]


def _ratios(accepted: Sequence[int], proposed: Sequence[int]) -> list[float]:
    pairs = itertools.zip_longest(accepted, proposed, fillvalue=0)
    return [some / every if every else 0.0 for some, every in pairs]


def conditional(reached: Sequence[float]) -> tuple[float, ...]:
    """Acceptance at each depth from the share of rounds that got as far.   0.5 0.2 0.1 -> 0.5 0.4 0.5

    A depth that no round reached has 0; one that more rounds reached than the one before (deeper drafts were proposed
    where the text was easier) has 1.
    """
    before = [1.0, *reached]
    return tuple(min(1.0, now / past) if past else 0.0 for now, past in zip(reached, before, strict=False))


def _carded(draft: Candidate) -> Known | None:
    """Of the engine on held-out prompts where the card has it, else of held-out text."""
    validation = draft.card.get("validation")
    if not isinstance(validation, Mapping):
        return None
    try:
        engine = validation.get("engine", {}).get("overall", {})
        if engine.get("acceptance"):
            return Known(check_acceptance(conditional(engine["acceptance"])), f"its card, {engine['prompts']} prompts")
        said = validation.get("acceptance")
        return Known(check_acceptance(said), "its card, held-out text") if said else None
    except (AttributeError, KeyError, TypeError, ValueError):
        return None  # a card is for people, and may say what it likes
