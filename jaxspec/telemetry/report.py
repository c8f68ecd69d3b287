"""Counters as a person or a program reads them: a dict, a table, JSON lines. On the host."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from jaxspec.telemetry.counters import Counters


class Chunk(NamedTuple):
    """What the host saw of one chunk of rounds."""

    seconds: float
    rounds: tuple[float, ...]  # by source, in rows


def stats(
    counters: Counters,
    names: Sequence[str],
    *,
    rounds: int,
    seconds: float,
    windows: Sequence[int],
    shares: Sequence[float] | np.ndarray | None = None,
) -> dict[str, Any]:
    """Everything that was counted, by source, as plain numbers.

    Args:
        counters: numpy or device arrays.
        names: the setup's sources.
        rounds: rounds of the batch, target passes in other words.
        seconds: wall time of these rounds.
        windows: the setup's window widths.
        shares: estimated share of time of each source [N] (`jaxspec.telemetry.ByDomain.shares`).

    Ratios of nothing are 0. `mean_accepted_tokens` is tokens emitted per row and target pass, the corrected or bonus
    token included; `acceptance_rate` is accepted / proposed drafts.
    """
    row_rounds, emitted, proposed, accepted, catch_up = (
        np.asarray(getattr(counters, name)).sum(0) for name in ("rounds", "emitted", "proposed", "accepted", "catch_up")
    )
    sources = by_source(names, row_rounds, emitted, proposed, accepted, catch_up, shares=shares)
    tokens = int(emitted.sum())
    return {
        "rounds": rounds,
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds if seconds > 0 else 0.0,
        "mean_accepted_tokens": _ratio(tokens, row_rounds.sum()),
        "acceptance_rate": _ratio(accepted.sum(), proposed.sum()),
        "passes_by_window": {str(w): int(n) for w, n in zip(windows, np.asarray(counters.widths), strict=True)},
        "sources": sources,
    }


def by_source(
    names: Sequence[str],
    rounds: np.ndarray,
    emitted: np.ndarray,
    proposed: np.ndarray,
    accepted: np.ndarray,
    catch_up: np.ndarray,
    *,
    shares: Sequence[float] | np.ndarray | None,
) -> dict[str, dict[str, Any]]:
    """What was counted, rows added up [N] or [N, A], by the sources' names; `shares` of time [N] where they are known.

    Ratios of nothing are 0.
    """
    return {
        name: {
            "rounds": int(rounds[i]),
            "proposed": int(proposed[i].sum()),
            "accepted": int(accepted[i].sum()),
            "tokens": int(emitted[i]),
            "acceptance_rate": _ratio(accepted[i].sum(), proposed[i].sum()),
            "mean_accepted_tokens": _ratio(emitted[i], rounds[i]),
            "proposed_by_depth": _trim(proposed[i]),
            "accepted_by_depth": _trim(accepted[i]),
            "catch_up_tokens": int(catch_up[i]),
            "share_of_rounds": _ratio(rounds[i], rounds.sum()),
            "share_of_time": None if shares is None else round(float(shares[i]), 4),
        }
        for i, name in enumerate(names)
    }


def time_shares(chunks: Sequence[Chunk], sources: int) -> np.ndarray | None:
    """Estimated share of time of each source [N], None without timings.

    Rounds of different sources run inside one compiled loop, where no clock can be read, so a round's seconds by source
    are fitted to the chunks by least squares, negative ones taken as 0; too few chunks to tell them apart share evenly.
    """
    if not chunks:
        return None
    counts = np.asarray([chunk.rounds for chunk in chunks], float).reshape(-1, sources)
    seconds = np.asarray([chunk.seconds for chunk in chunks])
    used = counts.sum(0) > 0
    even = np.where(used, seconds.sum() / max(counts.sum(), 1.0), 0.0)
    cost = even
    if np.linalg.matrix_rank(counts[:, used]) == used.sum() and len(chunks) >= 2 * used.sum():
        cost = np.zeros(sources)
        cost[used] = np.maximum(np.linalg.lstsq(counts[:, used], seconds, rcond=None)[0], 0.0)
    total = counts.sum(0) * cost
    return total / total.sum() if total.sum() > 0 else counts.sum(0) / max(counts.sum(), 1.0)


def table(report: dict[str, Any], title: str = "") -> Table:
    """The report's sources as a rich table, with a caption of the totals."""
    caption = (
        f"{report['tokens']} tokens in {report['seconds']:.2f} s, {report['tokens_per_second']:.1f} tok/s, "
        f"{report['rounds']} rounds, {report['mean_accepted_tokens']:.2f} tokens a round"
    )
    if sum(row["rounds"] for row in report["sources"].values()) != report["rounds"]:
        caption += " and row (rounds above are counted by row)"
    if "compile_seconds" in report:
        caption += f"; {report['prefill_seconds'] + report['compile_seconds']:.1f} s of prefill and compilation before"
    lagged = any(row["catch_up_tokens"] for row in report["sources"].values())
    columns = ["rounds", "proposed", "accepted", "rate", "tok/round", *(["catch-up"] if lagged else []), "time"]
    out = Table(title=title or None, caption=caption, caption_justify="left")
    out.add_column("source", overflow="fold")
    for name in columns:
        out.add_column(name, justify="right", no_wrap=True)
    for name, row in report["sources"].items():
        out.add_row(
            name,
            *(str(row[key]) for key in ("rounds", "proposed", "accepted")),
            format(row["acceptance_rate"], ".0%") if row["proposed"] else "-",
            format(row["mean_accepted_tokens"], ".2f") if row["rounds"] else "-",
            *([str(row["catch_up_tokens"])] if lagged else []),
            "-" if row["share_of_time"] is None else format(row["share_of_time"], ".0%"),
        )
    return out


def json_lines(report: dict[str, Any]) -> str:
    """One JSON line a source, each with its name, then one of the totals."""
    rows = [{"source": name, **row} for name, row in report["sources"].items()]
    totals = {key: value for key, value in report.items() if key != "sources"}
    return "\n".join(json.dumps(row) for row in [*rows, totals])


def _ratio(part: Any, whole: Any) -> float:
    return float(part) / float(whole) if whole else 0.0


def _trim(depths: np.ndarray) -> list[int]:
    return [int(n) for n in np.trim_zeros(depths, "b")]
