"""A report as a person reads it: rich tables and one plot."""

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from jaxspec import telemetry
from jaxspec.bench.contenders import MODE
from jaxspec.bench.measure import Told
from jaxspec.bench.page import page
from jaxspec.bench.run import Options
from jaxspec.bench.summary import DECODE, WHOLE
from jaxspec.files import write_beside


def tables(report: Mapping[str, Any]) -> list[Table | str]:
    """The speeds overall and by category, what each mode's sources did, and what a step costs."""
    results = report["results"]
    modes = [name for name, about in report["contenders"].items() if about["kind"] == MODE]
    sources = [telemetry.table(results["overall"][name], name) for name in modes]
    fixed = [name for name in modes if name.startswith("fixed:") and name != "fixed:none"]
    compared = [choices(results, fixed), depths(results["overall"], fixed)] if len(fixed) > 1 else []
    costs = steps(report["steps"], report["switch_overhead"])
    many = [by_rows(report["rows"])] if report.get("rows") else []
    return [speeds(results, report["equality"]), *compared, *sources, *many, *costs]


def speeds(results: Mapping[str, Mapping[str, Any]], equal: Mapping[str, Mapping[str, Any]]) -> Table:
    """Tokens/s of every contender, overall and in every category."""
    out = Table(
        title="tokens/s of the whole call, prefill included; in brackets of decoding alone",
        caption="x plain: to our plain loop; x peer: to the peer's fastest way in the category; of the whole call",
        caption_justify="left",
    )
    out.add_column("category", overflow="fold")
    out.add_column("who", overflow="fold", min_width=22)
    for name in ("tok/s", "(decode)", "x plain", "x peer", "tok/round", "rate", "equal"):
        out.add_column(name, justify="right", no_wrap=True)
    for category, rows in {"overall": results["overall"], **results["categories"]}.items():
        for place, (name, row) in enumerate(rows.items()):
            agreed = equal.get(name) if rows is results["overall"] else None
            out.add_row(
                category if place == 0 else "",
                name,
                f"{row[WHOLE]:.1f}",
                f"({row[DECODE]:.1f})",
                *(_show(row[f"{WHOLE}_to_{other}"], ".2f") for other in ("plain", "peer_best")),
                _show(row["mean_accepted_tokens"], ".2f"),
                _show(row["acceptance_rate"], ".0%"),
                "" if agreed is None else f"{agreed['equal']}/{agreed['compared']}",
                end_section=place == len(rows) - 1,
            )
    return out


def by_rows(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Every contender with many rows side by side."""
    out = Table(
        title="rows side by side: tokens/s of decoding while no row ends",
        caption="x plain: to the plain loop with as many rows; drafts and tokens of a row's round",
        caption_justify="left",
    )
    for name in ("rows", "who", "tok/s", "x plain", "drafts", "tok/round", "rate"):
        out.add_column(name, justify="left" if name == "who" else "right", no_wrap=True)
    for each in rows:
        for place, (name, row) in enumerate(each["contenders"].items()):
            out.add_row(
                str(each["rows"]) if place == 0 else "",
                name,
                f"{row['decode_tokens_per_second']:.1f}",
                f"{row['ratio_to_plain']:.2f}",
                f"{row['drafts_a_round']:.2f}",
                f"{row['tokens_a_round']:.2f}",
                f"{row['acceptance']:.0%}" if row["drafts_a_round"] else "-",
                end_section=place == len(each["contenders"]) - 1,
            )
    return out


def choices(results: Mapping[str, Mapping[str, Any]], fixed: list[str]) -> Table:
    """Every category under every fixed source and lookahead: decoding tokens/s over the plain loop's."""
    out = Table(
        title="decoding tokens/s over the plain loop's, by fixed source and lookahead",
        caption="best, gain: the fastest of these, and over the better of plain and lookup",
        caption_justify="left",
    )
    out.add_column("category", overflow="fold")
    for name in fixed:
        out.add_column(name.removeprefix("fixed:"), justify="right", overflow="fold")
    out.add_column("best", overflow="fold")
    out.add_column("gain", justify="right", no_wrap=True)
    for category, rows in {"overall": results["overall"], **results["categories"]}.items():
        ratios = {name: rows[name][f"{DECODE}_to_plain"] or 0.0 for name in fixed}
        best = max(ratios, key=lambda name: ratios[name])
        known = max([1.0, *(ratios[name] for name in fixed if _source(name, rows[name]["sources"]) == "lookup")])
        each = (f"{ratio:.2f}" for ratio in ratios.values())
        out.add_row(category, *each, best.removeprefix("fixed:"), f"{ratios[best] / known:.2f}")
    return out


def depths(overall: Mapping[str, Any], fixed: list[str]) -> Table:
    """What of every depth's drafts was accepted, under every fixed source and lookahead."""
    out = Table(title="drafts accepted of those proposed, by depth")
    counts = {name: overall[name]["sources"][_source(name, overall[name]["sources"])] for name in fixed}
    deepest = max((len(each["proposed_by_depth"]) for each in counts.values()), default=0)
    out.add_column("source:lookahead", overflow="fold")
    out.add_column("tok/round", justify="right", no_wrap=True)
    for depth in range(deepest):
        out.add_column(str(depth + 1), justify="right", no_wrap=True)
    for name, each in counts.items():
        pairs = itertools.zip_longest(each["accepted_by_depth"], each["proposed_by_depth"], fillvalue=0)
        rates = [f"{accepted / proposed:.2f}" if proposed else "-" for accepted, proposed in pairs]
        rates += ["-"] * (deepest - len(rates))
        out.add_row(name.removeprefix("fixed:"), f"{overall[name]['mean_accepted_tokens']:.2f}", *rates)
    return out


def _source(mode: str, sources: Iterable[str]) -> str:
    """The source that a fixed mode names, with its lookahead or without."""
    name = mode.removeprefix("fixed:")
    return name if name in sources else name.rpartition(":")[0]


def steps(costs: Mapping[str, Any], overhead: Mapping[str, float] | None) -> list[Table | str]:
    """Target passes by window width, and the floor that memory sets."""
    out = Table(title="one target pass")
    for name in ("window", "ms", "x width 1"):
        out.add_column(name, justify="right", no_wrap=True)
    for width, row in costs["windows"].items():
        out.add_row(width, f"{1e3 * row['seconds']:.2f}", f"{row['ratio']:.2f}")
    floor = (
        f"{costs['weight_bytes'] / 1e6:.0f} MB of weights at {costs['read_bytes_per_second'] / 1e9:.1f} GB/s take "
        f"{1e3 * costs['floor_seconds']:.1f} ms: a pass of width 1 takes {costs['step_to_floor']:.2f} times that, "
        f"a step of the plain loop {costs['loop_step_to_floor']:.2f} times."
    )
    if overhead is None:
        return [out, floor]
    return [out, floor, f"Selector and switch without a draft: {overhead['ratio']:.3f} times the plain loop's step."]


def save(report: Mapping[str, Any], options: Options, command: str = "") -> None:
    """Write the files that the options name: the report as JSON, its page, its plot.

    Raises:
        ValueError: a page that cannot be written to its end.
    """
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if options.report:
        write_beside(options.report, page(report, command))
    if options.plot:
        plot(report, options.plot)


@contextlib.contextmanager
def progress() -> Iterator[Told]:
    """A bar on standard error, gone at the end; none where that is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def plot(report: Mapping[str, Any], path: str | Path) -> None:
    """A PNG: tokens/s by category and contender, and the cost of a pass by window width."""
    from matplotlib.figure import Figure  # extra `bench`; drawn without a display

    groups = {"overall": report["results"]["overall"], **report["results"]["categories"]}
    figure = Figure(figsize=(max(10.0, 1.6 * len(groups)), 8.0), layout="constrained")
    top, bottom = figure.subplots(2, 1, height_ratios=(2, 1))
    _bars(top, groups, report["contenders"])
    costs = report["steps"]
    widths = list(costs["windows"])
    bottom.plot(widths, [1e3 * row["seconds"] for row in costs["windows"].values()], marker="o", label="target pass")
    bottom.axhline(1e3 * costs["floor_seconds"], linestyle="--", color="grey", label="weights / read bandwidth")
    bottom.set(xlabel="window width, tokens", ylabel="milliseconds", ylim=(0, None))
    bottom.legend()
    figure.savefig(path, format="png", dpi=120)


def _bars(axes: Any, groups: Mapping[str, Mapping[str, Any]], names: Iterable[str]) -> None:
    each = list(names)
    width = 0.8 / len(each)
    for place, name in enumerate(each):
        left = [group + (place - (len(each) - 1) / 2) * width for group in range(len(groups))]
        axes.bar(left, [rows[name][WHOLE] for rows in groups.values()], width, label=name)
    axes.set_xticks(range(len(groups)), list(groups), rotation=20)
    axes.set_ylabel("tokens/s, whole call")
    axes.legend(fontsize="small")


def _show(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
