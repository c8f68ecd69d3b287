"""Advice as a person reads it: rich tables and one plot, both of the report alone."""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from jaxspec.select.expected import equivalent, expected_tokens

GB = 1e9
NEVER = "never"
PARTS = ("target", "caches", "drafts", "draft_caches", "other", "total", "memory")
HEADS = ("target", "caches", "draft", "its caches", "other", "in all", "there is")
SHOWN = ("0.5", "0.7", "0.9")
"""Acceptances of the report's grid that the tables show."""

WHOLE: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
"""Words of the recommendation stay whole: some are commands."""

WIDTH = 100
"""Columns of the recommendation."""


def tables(report: Mapping[str, Any]) -> list[Table | str]:
    """Drafts side by side, each one's lookaheads, memory, notes, and the recommendation."""
    notes = [f"- {note}" for note in report["notes"]]
    lookaheads = [choices(each, report["target"]["plain_seconds"]) for each in report["drafts"]]
    said = [textwrap.fill(line, WIDTH, **WHOLE) for line in report["recommendation"].splitlines()]
    return [overview(report), *lookaheads, memory(report), *notes, "\n".join(["", *said])]


def overview(report: Mapping[str, Any]) -> Table:
    """One line a draft."""
    target, layout = report["target"], report["layout"]
    size = f"{target['parameters'] / 1e9:.3g} B"
    out = Table(
        title=f"{Path(target['name']).name} ({size}), {layout['dtype']}, {layout['rows']} x "
        f"{layout['context']} tokens, on {_devices(report)}",
        caption=f"a plain step takes {1e3 * target['plain_seconds']:.3g} ms; pays from: acceptance at every depth",
        caption_justify="left",
    )
    for name in ("draft", "vocabulary", "acceptance"):
        out.add_column(name, overflow="fold")
    for name in ("pays from", "lookahead", "tok/round", "x plain", "fits"):
        out.add_column(name, justify="right", no_wrap=True)
    for each in report["drafts"]:
        best, least, known = each["best"], each["break_even"], each["acceptance"]
        out.add_row(
            each["name"],
            f"{each['vocabulary']['verdict']}: {each['vocabulary']['text']}",
            "unknown" if known is None else f"{', '.join(f'{a:.2f}' for a in known['rates'])} ({known['origin']})",
            NEVER if least is None else f"{least['acceptance']:.3f}",
            "-" if best is None else str(best["lookahead"]),
            "-" if best is None else f"{best['tokens']:.2f}",
            "-" if best is None else f"{best['speedup']:.2f}",
            _fits(each["memory"]),
        )
    return out


def _devices(report: Mapping[str, Any]) -> str:
    device, layout = report["device"], report["layout"]
    speed = f"{device['bandwidth'] / GB:.0f} GB/s"
    speed += "" if device["flops"] is None else f", {device['flops'] / 1e12:.3g} TFLOP/s"
    mesh = "" if layout["devices"] == 1 else f" x {layout['devices']} (data={layout['data']}, model={layout['model']})"
    return f"{device['name']}{mesh}, {speed}"


def _fits(held: Mapping[str, Any]) -> str:
    return {None: "-", True: "yes", False: "NO"}[held["fits"]]


def choices(draft: Mapping[str, Any], plain: float) -> Table:
    """Every lookahead of a draft: cost of its rounds, from where it pays, what it gives."""
    known = draft["best"] is not None
    out = Table(
        title=f"{draft['name']} by lookahead ({draft['basis']})",
        caption=f"plain steps of {1e3 * plain:.3g} ms; x plain at an acceptance of {', '.join(SHOWN)}"
        + (", and at its own" if known else ""),
        caption_justify="left",
    )
    names = ["lookahead", "draft ms", "verify ms", "plain steps", "pays from", *(f"x at {a}" for a in SHOWN)]
    for name in [*names, *(["tok/round", "x plain"] if known else [])]:
        out.add_column(name, justify="right", no_wrap=True)
    for row in draft["choices"]:
        own = [f"{row['tokens']:.2f}", f"{row['speedup']:.2f}"] if known else []
        out.add_row(
            str(row["lookahead"]),
            f"{1e3 * row['draft_seconds']:.3g}",
            f"{1e3 * row['verify_seconds']:.3g}",
            f"{row['cost']:.2f}",
            NEVER if row["break_even"] is None else f"{row['break_even']:.3f}",
            *(f"{row['at'][a]:.2f}" for a in SHOWN),
            *own,
            style="bold" if known and row["lookahead"] == draft["best"]["lookahead"] else None,
        )
    return out


def memory(report: Mapping[str, Any]) -> Table:
    """What lies on each device, without a draft and with each."""
    devices = report["layout"]["devices"]
    out = Table(
        title="GB on the device" if devices == 1 else f"GB on each of {devices} devices",
        caption="temporaries and the program come on top: scripts/compile_check.py says how much; -: not known",
        caption_justify="left",
    )
    out.add_column("with", overflow="fold")
    for name in (*HEADS, "spare"):
        out.add_column(name, justify="right", no_wrap=True)
    rows = {"no draft": report["memory"]} | {each["name"]: each["memory"] for each in report["drafts"]}
    for name, held in rows.items():
        style = "red" if held["fits"] is False else None
        out.add_row(name, *(_gb(held[part]) for part in (*PARTS, "spare")), style=style)
    return out


def _gb(nbytes: float | int | None) -> str:
    return "-" if nbytes is None else f"{nbytes / GB:.3f}"


def plot(report: Mapping[str, Any], path: str | Path) -> None:
    """A PNG: for each draft the speed-up over acceptance by lookahead, where it pays, and its own acceptance."""
    from matplotlib.figure import Figure  # extra `bench`; drawn without a display

    drafts = report["drafts"]
    columns = min(3, len(drafts))
    lines = -(-len(drafts) // columns)
    figure = Figure(figsize=(5.5 * columns, 4.2 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).flat
    for axes, draft in zip(panels, drafts, strict=False):
        _panel(axes, draft)
    for axes in list(figure.axes)[len(drafts) :]:
        axes.remove()
    figure.suptitle(f"{Path(report['target']['name']).name} on {_devices(report)}", fontsize="medium")
    figure.savefig(path, format="png", dpi=120)


def _panel(axes: Any, draft: Mapping[str, Any]) -> None:
    grid = [i / 100 for i in range(101)]
    for row in draft["choices"]:
        speeds = [expected_tokens(a, row["lookahead"]) / row["cost"] for a in grid]
        axes.plot(grid, speeds, label=f"lookahead {row['lookahead']}", linewidth=1)
    axes.axhline(1.0, linestyle="--", color="grey")
    if draft["break_even"] is not None:
        axes.axvline(draft["break_even"]["acceptance"], linestyle=":", color="black", label="pays from here")
    if draft["best"] is not None and draft["best"]["lookahead"]:
        best = draft["best"]
        same = equivalent(draft["acceptance"]["rates"], best["lookahead"])
        axes.plot([same], [best["speedup"]], marker="o", color="black", linestyle="none", label="its own")
    axes.set(title=draft["name"], xlabel="acceptance at every depth", ylabel="x plain decoding", xlim=(0, 1))
    axes.set_ylim(0, None)
    axes.legend(fontsize="x-small")
