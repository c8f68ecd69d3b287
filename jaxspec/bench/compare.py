"""Selectors side by side on the same records: tokens in the time of a plain step, and their share of the gap.

share of the gap = (selector - rule) / (oracle - rule)      the rule is the field's (`jaxspec.bench.rules`)
"""

import dataclasses
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from jaxspec.bench import processes
from jaxspec.bench import record as records_
from jaxspec.bench.oracle import always, best_fixed, optimum, oracle, share_of_gap
from jaxspec.bench.prices import CURVES, curve_prices, priced
from jaxspec.bench.record import Pool, Record, pool_of
from jaxspec.bench.regret_plot import plot_regrets
from jaxspec.bench.replay import Replayed, replay
from jaxspec.bench.rules import Info, selector_by_name
from jaxspec.bench.shifts import recoveries, sabotage, splice
from jaxspec.bench.traces import read_traces
from jaxspec.contracts import MODEL
from jaxspec.costs import open_document, parse
from jaxspec.select.cost import CostTable

RULE = "field"
"""The selector that shares of the gap are counted from."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What is played on what."""

    traces: str | None = None  # folder of records, or .jsonl of traces (`jaxspec.bench.traces`); made-up texts if None
    costs: str = "flat"  # one of CURVES, or a .json file of a cost table
    draft_step: Sequence[float] = (1 / 3, 0.1, 0.03)  # plain steps that a model's draft costs; not for a file
    select: Sequence[str] = (RULE, "rule")
    fresh: bool = False  # every text with a new state
    order: Sequence[str] = ()  # categories to splice into one text
    part: int | None = None  # tokens of each part at the most
    sabotage: str | None = None  # SOURCE:PLACE, the position from which a source is always wrong
    tokens: int = 4000  # of made-up texts
    seed: int = 0  # of made-up texts


def compare(options: Options) -> dict[str, Any]:
    """The report, JSON values: for each draft step the selectors, the oracle, the optimum and the best fixed choice.

    Raises:
        ValueError: no such records, costs, selector or category.
    """
    if options.part is not None and (options.part < 1 or not options.order):
        raise ValueError(f"part is {options.part}; give 1 or more tokens, and the order of the parts")
    records, starts = _changed(options, read(str(options.traces)))
    scenes = scenes_of(options, records)
    players = [{name: selector_by_name(name, info) for name in options.select} for _, info in scenes]
    tables = []
    for (step, info), chosen in zip(scenes, players, strict=True):
        tables.append({"draft_step": step, **_table(records, info, chosen, options, starts)})
    texts = {name: sum(record.category == name for record in records) for name in {r.category for r in records}}
    return {"options": dataclasses.asdict(options), "texts": texts, "tables": tables}


def _changed(options: Options, records: list[Record]) -> tuple[list[Record], list[int]]:
    """The texts as the options splice and sabotage them, and where the one text there is changes."""
    starts: list[int] = []
    if options.order:
        whole, starts = splice(records, options.order, tokens=options.part)
        records = [whole]
    if options.sabotage is not None:
        source, _, start = options.sabotage.rpartition(":")
        if not (source and start.isdecimal()):
            raise ValueError(f"sabotage is {options.sabotage!r}; give SOURCE:PLACE, for example lm:400")
        records = [sabotage(record, source, min(int(start), len(record))) for record in records]
        inside = len(records) == 1 and int(start) < len(records[0])
        starts = sorted({*(starts or [0]), int(start)}) if inside else []
    return records, starts


def read(path: str) -> list[Record]:
    """Records of a folder, or traces of a file."""
    return records_.load(path)[0] if Path(path).is_dir() else read_traces(path)


def scenes_of(options: Options, records: Sequence[Record]) -> list[tuple[float | None, Info]]:
    """Draft steps and what a selector is made for under each; one without a step where the costs are a file's."""
    pool, depth = pool_of(records), records[0].depth
    if options.costs in CURVES or not Path(options.costs).is_file():
        windows = tuple(range(1, depth + 2))
        steps = options.draft_step
        return [(step, Info(pool, depth, windows, curve_prices(options.costs, pool, depth, step))) for step in steps]
    windows, costs = read_costs(options.costs, pool)
    priced(costs, records, windows)  # refuses what does not cover the records
    return [(None, Info(pool, depth, windows, costs))]


def read_costs(path: str, pool: Pool) -> tuple[tuple[int, ...], CostTable]:
    """A cost table as scripts/calibrate.py writes it (`jaxspec.costs.parse`), and the window widths that it names.

    Raises:
        ValueError: a file that is no cost table of the pool's sources.
    """
    said = open_document(path)
    widths = said.get("verify") if isinstance(said, Mapping) else None
    if not (isinstance(widths, Mapping) and widths and all(str(width).isdecimal() for width in widths)):
        raise ValueError(
            f'the cost table {path} has no verify by width; give one, for example {{"1": 0.03, "8": 0.05}}'
        )
    windows = tuple(sorted(int(width) for width in widths))
    needs = {"paid": [kind == MODEL for kind in pool.costs], "lags": pool.lags, "rides": pool.carrier is not None}
    try:
        return windows, parse(said, pool.names, windows, **needs)
    except ValueError as error:
        raise ValueError(f"the cost table {path}: {error}") from None


def _table(
    records: Sequence[Record], info: Info, players: Mapping[str, Any], options: Options, starts: Sequence[int]
) -> dict[str, Any]:
    costs, windows = info.costs, info.windows
    plain = float(np.asarray(costs.verify)[0])
    best = oracle(records, costs, windows=windows)
    (source, lookahead), fixed = best_fixed(records, costs, windows=windows)
    try:
        rule = replay(*selector_by_name(RULE, info), records, costs, windows=windows)
    except ValueError:  # nothing to look up, or no model
        rule = replay(*selector_by_name("rule", info), records, costs, windows=windows)

    def said(played: Replayed) -> dict[str, Any]:
        return {
            "rate": played.rate * plain,
            "share": share_of_gap(played.rate, rule.rate, best.rate),
            "categories": {name: rate * plain for name, rate in played.by_category().items()},
            "rounds": played.by_source(),
        }

    shown = {}
    for name, (selector, params) in players.items():
        played = replay(selector, params, records, costs, windows=windows, fresh=options.fresh)
        shown[name] = said(played)
        if starts:
            shown[name]["shifts"] = recoveries(played.text(0), records[0], costs, starts, windows=windows)
    return {
        "selectors": shown,
        "bounds": {
            "plain": said(always(records, costs, 0, 0, windows=windows)),
            "best fixed": said(fixed) | {"choice": f"{info.pool.names[source]}:{lookahead}"},
            "oracle": said(best),
            "optimum": said(optimum(records, costs, windows=windows)),
        },
    }


def regret(options: Options, *, plot: str | None = None) -> dict[str, Any]:
    """Every selector's regret on every made-up process (`jaxspec.bench.processes`), under the first draft step.

    Args:
        plot: .png to draw it in.

    Raises:
        ValueError: no such costs or selector, or a plot without matplotlib.
    """
    if plot is not None and find_spec("matplotlib") is None:
        raise ValueError("the plot needs matplotlib, which is missing; pip install jaxspec-decode[bench]")
    if options.tokens < 2:
        raise ValueError(f"tokens is {options.tokens}; made-up texts have 2 or more")
    made = [kind(options.tokens, seed=options.seed) for kind in processes.KINDS]
    (_, info), *_ = scenes_of(options, [process.record for process in made])
    players = {name: selector_by_name(name, info) for name in options.select}
    reports = [processes.regrets(process, players, info.costs, windows=info.windows) for process in made]
    if plot is not None:
        plot_regrets(reports, plot)
    return {"options": dataclasses.asdict(options), "processes": reports}


def tables(report: Mapping[str, Any]) -> list[Table]:
    """As a person reads it: selectors by draft step, then by category at each draft step; or by process."""
    if "processes" in report:
        return [_by_process(report["processes"])]
    columns = report["tables"]
    out = Table(title="tokens in the time of a plain step; share of the gap between the field's rule and the oracle")
    out.add_column("", overflow="fold")
    for column in columns:
        out.add_column(_head(column), justify="right", no_wrap=True)
    rows = [(kind, name) for kind in ("selectors", "bounds") for name in columns[0][kind]]
    for kind, name in rows:
        cells = [column[kind][name] for column in columns]
        out.add_row(name, *(f"{cell['rate']:.2f} ({cell['share']:.0%})" for cell in cells))
    return [out, *(_by_category(column) for column in columns), *_shifts(columns)]


def _by_process(reports: Sequence[Mapping[str, Any]]) -> Table:
    """Rates, and in brackets what a selector has cost beyond the best fixed choice."""
    out = Table(title="tokens a unit of cost; in brackets the regret against the best fixed choice")
    names = list(reports[0]["players"])
    for name in ("process", *names, "best fixed", "oracle"):
        out.add_column(name, overflow="fold")
    for report in reports:
        each = (report["players"][name] for name in names)
        cells = (f"{player['rate']:.2f} ({player['regret_to_best_fixed'][-1]:.0f})" for player in each)
        best = report["best_fixed"]
        out.add_row(report["process"], *cells, f"{best['rate']:.2f} {best['choice']}", f"{report['oracle_rate']:.2f}")
    return out


def _head(column: Mapping[str, Any]) -> str:
    return "measured" if column["draft_step"] is None else f"draft step {column['draft_step']:.3g}"


def _by_category(column: Mapping[str, Any]) -> Table:
    rows = {**column["selectors"], **column["bounds"]}
    out = Table(title=f"by category, {_head(column)}; best fixed is {column['bounds']['best fixed']['choice']}")
    out.add_column("category", overflow="fold")
    for name in rows:
        out.add_column(name, justify="right", overflow="fold")
    for category in column["bounds"]["plain"]["categories"]:
        out.add_row(category, *(f"{row['categories'][category]:.2f}" for row in rows.values()))
    return out


def _shifts(columns: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Rounds until 95 % of the best fixed choice's rate is regained after each shift."""
    tables = []
    for column in columns:
        shifted = {name: row["shifts"] for name, row in column["selectors"].items() if "shifts" in row}
        if shifted:
            out = Table(title=f"rounds until 95 % of the best fixed rate is regained, {_head(column)}")
            for name in ("from token", "best fixed", *shifted):
                out.add_column(name, justify="right", overflow="fold")
            for place, shift in enumerate(next(iter(shifted.values()))):
                each = (row[place]["rounds"] for row in shifted.values())
                out.add_row(str(shift["start"]), shift["best"], *("never" if n is None else str(n) for n in each))
            tables.append(out)
    return tables


__all__ = ["RULE", "Options", "compare", "read", "read_costs", "regret", "scenes_of", "tables"]
