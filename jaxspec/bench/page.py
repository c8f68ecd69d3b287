"""A run's report as one self-contained HTML page: nothing is loaded from elsewhere, and names stay text."""

import html
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from jaxspec.bench.contenders import MODE, PLAIN
from jaxspec.bench.summary import DECODE, WHOLE
from jaxspec.telemetry.by_domain import busy, cells
from jaxspec.telemetry.page import document, numbers, settings, stacked, style_of
from jaxspec.telemetry.svg import Axis, Bar, Series, svg_bars, svg_line

HEAD = ("category", "who", "tok/s", "decoding", "x plain", "decoding x plain", "tok/round", "accepted", "by depth")


def page(report: Mapping[str, Any], command: str = "") -> str:
    """The page of what `jaxspec.bench.run.bench` reports, or of the JSON of it; it carries the whole report too.

    Args:
        command: that made the report, for people to repeat; left out where empty.
    """
    title = f"Benchmark of {str(report['options']['target']).rstrip('/').rsplit('/', 1)[-1]}"
    body = [
        f"<header><h1>{html.escape(title)}</h1>{headline(report)}{settings(options(report))}</header>",
        speeds(report),
        acceptance(report),
        *time_by_source(report),
        *([side_by_side(report["rows"])] if report.get("rows") else []),
        passes(report["steps"]),
        provenance(report, command),
    ]
    return document(title, "".join(body), data=report)


def headline(report: Mapping[str, Any]) -> str:
    """The fastest mode beside the plain loop, as large numbers."""
    overall = report["results"]["overall"]
    modes = [name for name, about in report["contenders"].items() if about["kind"] == MODE]
    best = max(modes, key=lambda name: overall[name][DECODE], default=PLAIN)
    compared = [(each["equal"], each["compared"]) for each in report["equality"].values()]
    facts = [
        (_show(overall[best][f"{DECODE}_to_plain"], ".2f"), f"times plain decoding, {best}"),
        (f"{overall[best][DECODE]:.1f}", f"tokens a second, {best}"),
        (f"{overall[PLAIN][DECODE]:.1f}", "tokens a second, plain"),
        (f"{sum(equal for equal, _ in compared)}/{sum(every for _, every in compared)}", "answers equal to plain's"),
        (f"{overall[PLAIN]['prompts']}", "prompts"),
    ]
    shown = "".join(f"<div><b>{html.escape(value)}</b> <span>{html.escape(what)}</span></div>" for value, what in facts)
    return f'<div class="facts">{shown}</div>'


def options(report: Mapping[str, Any]) -> dict[str, str]:
    """What the run was asked for, where it was asked for something."""
    given = {name: value for name, value in report["options"].items() if value not in (None, ())}
    return {
        name.replace("_", " "): ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for name, value in given.items()
        if name not in ("json", "plot", "report", "read_bytes")
    }


def speeds(report: Mapping[str, Any]) -> str:
    """The comparison: every category and contender, drawn and in numbers."""
    groups = [("overall", report["results"]["overall"]), *report["results"]["categories"].items()]
    names = list(report["contenders"])
    width = 1.0 / (len(names) + 1)
    bars = [
        Bar(group + (0.5 + place) * width, width, rows[name][DECODE], style_of(name, names))
        for group, (_, rows) in enumerate(groups)
        for place, name in enumerate(names)
    ]
    across = Axis("category", float(len(groups)), names=[category for category, _ in groups])
    drawn = svg_bars(
        "Tokens a second while decoding", bars, across, Axis("tokens a second", max(b.height for b in bars))
    )
    table = numbers(HEAD, [line(category, name, row, names) for category, rows in groups
                           for name, row in rows.items()])  # fmt: skip
    timed = {HEAD[2]: report["timing"][WHOLE], HEAD[3]: report["timing"][DECODE]}
    return (
        f"<section><h2>Comparison</h2>{keys(names)}"
        f'<div class="plots" style="--rounds:{3 * len(groups) * (len(names) + 1)}">{drawn}</div>'
        f'<div class="two">{table}</div>{settings(timed)}</section>'
    )


def line(category: str, name: str, row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """A contender's numbers in a category, as HTML cells."""
    return [
        html.escape(category),
        swatch(name, names),
        f"{row[WHOLE]:.1f}",
        f"{row[DECODE]:.1f}",
        _show(row[f"{WHOLE}_to_plain"], ".2f"),
        _show(row[f"{DECODE}_to_plain"], ".2f"),
        _show(row["mean_accepted_tokens"], ".2f"),
        _show(row["acceptance_rate"], ".0%"),
        " ".join(_show(rate, ".2f") for rate in rates(row)) or "-",
    ]


def rates(row: Mapping[str, Any]) -> list[float | None]:
    """Drafts accepted of those proposed at every depth, all sources together; None where none was proposed."""
    summed = (
        [sum(counts) for counts in itertools.zip_longest(*lists, fillvalue=0)]
        for lists in (
            [each[key] for each in row["sources"].values()] for key in ("accepted_by_depth", "proposed_by_depth")
        )
    )
    return [a / p if p else None for a, p in itertools.zip_longest(*summed, fillvalue=0)]


def acceptance(report: Mapping[str, Any]) -> str:
    """Acceptance by depth of every mode that drafts, drawn."""
    overall, names = report["results"]["overall"], list(report["contenders"])
    curves = {name: rates(overall[name]) for name in names}
    series = [
        Series(
            name,
            [(float(d), rate) for d, rate in enumerate(curve, 1) if rate is not None],
            style_of(name, names),
            dots=dots,
        )
        for name, curve in curves.items()
        for dots in (False, True)
    ]
    deepest = max(map(len, curves.values()), default=0)
    if not deepest:
        return ""
    across = Axis("depth", float(deepest), steps=deepest)
    drawn = svg_line("Drafts accepted by depth, all categories", series, across, Axis("share accepted", 1.0, ".0%", 2))
    shown = keys([name for name in names if curves[name]], names)
    return f'<section><h2>Acceptance</h2>{shown}<div class="plots">{drawn}</div></section>'


def time_by_source(report: Mapping[str, Any]) -> list[str]:
    """Telemetry of each mode by source and category."""
    parts = []
    for mode, told in report["telemetry"].items():
        sources = list(dict.fromkeys(name for about in told["domains"].values() for name in about["sources"]))
        used = [name for name in sources if any(name in busy(about["sources"]) for about in told["domains"].values())]
        stacks = "".join(
            f'<div><span title="{html.escape(domain)}">{html.escape(domain)}</span>'
            f"{stacked([(style_of(name, sources), row['seconds']) for name, row in about['sources'].items()])}</div>"
            for domain, about in told["domains"].items()
        )
        lines = [
            [html.escape(domain), swatch(name, sources), *cells(row)]
            for domain, about in told["domains"].items()
            for name, row in busy(about["sources"]).items()
        ]
        head = ("category", "source", "rounds", "accepted by depth", "tok/round", "seconds", "time", "tokens won")
        parts.append(
            f'<details class="part"{"" if parts else " open"}><summary>{html.escape(mode)}</summary>'
            f'{keys(used, sources)}<div class="stacks" style="--label:110px">{stacks}</div>'
            f'<div class="two">{numbers(head, lines)}</div></details>'
        )
    said = ", ".join(dict.fromkeys(told["seconds_from"] for told in report["telemetry"].values()))
    note = (
        f"Seconds of decoding, shared out by {said}; time is the share of the category's. Tokens won are those beyond "
        "what the plain loop makes in the same seconds."
    )
    return [f'<section><h2>Sources by category</h2><p class="note">{html.escape(note)}</p>{"".join(parts)}</section>']


def side_by_side(rows: Sequence[Mapping[str, Any]]) -> str:
    """Speed and drafts with many rows side by side, drawn over the number of rows and in numbers."""
    names = list(rows[0]["contenders"])
    drafting = [name for name in names if name != PLAIN]

    def drawn(title: str, key: str, shown: Sequence[str], axis: str) -> str:
        series = [
            Series(name, [(place + 0.5, each["contenders"][name][key]) for place, each in enumerate(rows)],
                   style_of(name, names), dots=dots)
            for name in shown for dots in (False, True)
        ]  # fmt: skip
        across = Axis("rows", float(len(rows)), names=[str(each["rows"]) for each in rows])
        return svg_line(title, series, across, Axis(axis, max(y for one in series for _, y in one.points) or 1.0))

    plots = drawn("Tokens a second over the plain loop's", "ratio_to_plain", names, "times plain")
    plots += drawn("Drafts that a row verifies a round", "drafts_a_round", drafting, "drafts")
    lines = [
        [str(each["rows"]), swatch(name, names), f"{row['decode_tokens_per_second']:.1f}",
         f"{row['ratio_to_plain']:.2f}", f"{row['drafts_a_round']:.2f}", f"{row['tokens_a_round']:.2f}"]
        for each in rows for name, row in each["contenders"].items()
    ]  # fmt: skip
    table = numbers(("rows", "who", "tok/s", "x plain", "drafts", "tok/round"), lines)
    return (
        f'<section><h2>Rows side by side</h2>{keys(names)}<div class="plots">{plots}</div>'
        f'<div class="two">{table}</div>'
        '<p class="note">While no row ends; x plain is to the plain loop with as many rows.</p></section>'
    )


def passes(costs: Mapping[str, Any]) -> str:
    """What a target pass costs by window width, beside the floor that memory sets."""
    points = [(float(width), 1e3 * row["seconds"]) for width, row in costs["windows"].items()]
    floor, widest = 1e3 * costs["floor_seconds"], max(width for width, _ in points)
    series = [
        Series("weights / read bandwidth", [(0.0, floor), (widest, floor)], "s0"),
        Series("a target pass", points, "s1"),
        Series("a target pass", points, "s1", dots=True),
    ]
    most = max(floor, *(ms for _, ms in points))
    drawn = svg_line("One target pass by window width", series, Axis("tokens in the window", widest, steps=8),
                     Axis("milliseconds", most))  # fmt: skip
    lines = [[html.escape(width), f"{1e3 * row['seconds']:.2f}", f"{row['ratio']:.2f}"]
             for width, row in costs["windows"].items()]  # fmt: skip
    shown = keys(["weights / read bandwidth", "a target pass"])
    said = (
        f"{costs['weight_bytes'] / 1e6:.0f} MB of weights at {costs['read_bytes_per_second'] / 1e9:.1f} GB/s take "
        f"{floor:.1f} ms; a step of the plain loop takes {costs['loop_step_to_floor']:.2f} times that."
    )
    return (
        f'<section><h2>One target pass</h2>{shown}<div class="plots">{drawn}</div>'
        f'{numbers(("window", "ms", "x width 1"), lines)}<p class="note">{html.escape(said)}</p></section>'
    )


def provenance(report: Mapping[str, Any], command: str) -> str:
    """Where the numbers come from, what parted from plain decoding, and the command."""
    made = report["provenance"]
    given = {name: value for name, value in made.items() if name != "versions" and value is not None}
    told = {name.replace("_", " "): ", ".join(value) if isinstance(value, list) else f"{value}"
            for name, value in given.items()}  # fmt: skip
    told |= {"load before": f"{report['load_before']}", "capacity": f"{report['capacity']}",
             "compilations after the warm-up": f"{report['compilations_after_warmup']}"}  # fmt: skip
    versions = {name: str(version) for name, version in made["versions"].items() if version is not None}
    lines = [
        [html.escape(name), str(each["compared"]), str(each["equal"])] for name, each in report["equality"].items()
    ]
    parted = [
        f"{name}: prompt {apart['prompt']}, token {apart['position'] + 1}"
        for name, each in report["equality"].items()
        for apart in each["mismatches"]
    ]
    differing = "".join(f"<li>{html.escape(each)}</li>" for each in parted)
    apart = f"<h3>Where answers part from plain decoding</h3><ul>{differing}</ul>" if parted else ""
    repeat = f'<div class="prompt"><pre>{html.escape(command)}</pre></div>' if command else ""
    table = numbers(("answers", "compared", "equal to plain"), lines) if lines else ""
    return f"<section><h2>Provenance</h2>{settings(told)}{settings(versions)}{table}{apart}{repeat}</section>"


def keys(names: Sequence[str], every: Sequence[str] = ()) -> str:
    """Names with their colours, those that they have among `every`."""
    return f'<div class="keys">{"".join(f"<span>{swatch(name, every or names)}</span>" for name in names)}</div>'


def swatch(name: str, names: Sequence[str]) -> str:
    """A name behind its colour."""
    return f'<i class="swatch {style_of(name, names)}"></i>{html.escape(name)}'


def _show(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


__all__ = ["page"]
