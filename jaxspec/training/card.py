"""The card of a trained draft: what it was made of, how, and how good it is, in its own folder for people to read."""

import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxspec.checkpoint import Artifact, open_draft

CARD = "README.md"


def peak_memory() -> dict[str, int]:
    """Most memory that this process has held, in MB: of the host, and of the first device where it counts its own."""
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = {"host": held // (1 << 20 if sys.platform == "darwin" else 1 << 10)}  # bytes there, KB elsewhere
    counted = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in counted:
        peak["device"] = counted["peak_bytes_in_use"] >> 20
    return peak


def data_of(settings: Mapping[str, Any], note: str | None) -> str:
    """What a corpus's settings say of it, after what its maker says of its licences."""
    if "text" in settings:
        said = f"{settings['count']} documents of {', '.join(settings['text'])} (SHA-256 {settings['sha256']})"
    else:
        heat = settings.get("temperature", 0)
        how = "greedy" if not heat else f"temperature {heat}, top-p {settings.get('top_p', 1.0)}"
        said = (
            f"{settings.get('count', 'unknown')} prompts answered by the target ({how}, seed {settings.get('seed', 0)})"
        )
    return f"{note or 'Licences: not given.'} {said}."


def write_card(folder: str | Path) -> Path:
    """Write the card of the draft in a folder, from its record.

    Raises:
        ValueError: a folder without a draft.
    """
    artifact = open_draft(folder)
    file = Path(folder) / CARD
    beside = file.with_suffix(".part")
    beside.write_text(render(artifact), encoding="utf-8")
    beside.replace(file)
    return file


def render(artifact: Artifact) -> str:
    """The card's text."""
    card = artifact.card
    lines = [f"# A draft of kind `{artifact.config.kind}`", ""]
    lines += [f"Made by jaxspec for the target `{card.get('target', 'unknown')}` alone.", ""]
    lines += ["```bash", card["command"], "```", ""] if card.get("command") else []
    memory = card.get("peak_memory_mb", {})
    facts = {
        "data": card.get("data"),
        "target weights (SHA-256)": artifact.target or "not known",
        "started from": card.get("init_from"),
        "steps": card.get("steps"),
        "tokens read, prompts included": card.get("tokens"),
        "tokens of the corpus": card.get("corpus_tokens"),
        "minutes": card.get("minutes"),
        "tokens a second": card.get("tokens_per_second"),
        "peak memory": ", ".join(f"{size} MB ({where})" for where, size in memory.items()),
        "bytes of weights": sum(tensor.nbytes for tensor in artifact.tensors.values()),
        "tokens it can say": f"{artifact.config.vocab}, the target's likeliest in {card['coverage']:.1%} of places"
        if "coverage" in card
        else artifact.config.vocab,
        "temperature": artifact.temperature,
    }
    lines += ["| | |", "|---|---|", *(f"| {name} | {fact} |" for name, fact in facts.items() if fact), ""]
    held = card.get("validation", {})
    if "agreement" in held:
        depths = "; ".join(f"{value:.3f}" for value in held["agreement"])
        lines += [f"On held-out text its likeliest token is the target's, by depth: {depths}.", ""]
    return "\n".join([*lines, *engine_table(held)])


def engine_table(held: Mapping[str, Any]) -> list[str]:
    """Lines on what the engine accepted of held-out prompts' drafts; none where that was not looked at.

    Args:
        held: a record's "validation", with what a `Validator` found as its "engine".
    """
    if "engine" not in held:
        return []
    return ["Held-out prompts in the engine, accepted drafts of those proposed:", "", *_table(held["engine"]), ""]


def _table(engine: Mapping[str, Any]) -> list[str]:
    rows = {"overall": engine["overall"], **engine["categories"]}
    depths = len(engine["overall"]["acceptance"])
    head = ["category", "prompts", "tokens", "tokens a round", *(f"depth {depth + 1}" for depth in range(depths))]
    return [_row(head), _row(["---"] * len(head)), *(_row(_values(name, row)) for name, row in rows.items())]


def _values(name: str, row: Mapping[str, Any]) -> list[str]:
    accepted = [f"{value:.3f}" for value in row["acceptance"]]
    return [name, str(row["prompts"]), str(row["tokens"]), f"{row['mean_accepted_tokens']:.2f}", *accepted]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
