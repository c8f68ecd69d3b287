"""A picture of a run: loss and acceptance over its steps."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_said: set[str] = set()


def read_metrics(file: str | Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics; a last line that is cut short is left out."""
    lines = []
    for line in Path(file).read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def plot_run(metrics: str | Path, png: str | Path) -> bool:
    """Draw the metrics of a run; whether it could be done. Without matplotlib (extra `bench`) that is said once."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        if "matplotlib" not in _said:
            _said.add("matplotlib")
            sys.stderr.write("no plot is drawn: matplotlib is missing; install jaxspec-decode[bench]\n")
        return False
    lines = read_metrics(metrics)
    held = [line | line["validation"] for line in lines if "validation" in line]
    engine = [{"step": line["step"], **line["engine"]["overall"]} for line in held if "engine" in line]
    figure = Figure(figsize=(9.0, 9.0), layout="constrained")
    losses, accepted = figure.subplots(2, 1, sharex=True)
    _curves(losses, lines, "loss", "training", alpha=0.5)
    _curves(losses, held, "loss", "held-out text", marker="o")
    losses.set(ylabel="loss, nats")
    _curves(accepted, lines, "agreement", "training, likeliest token", alpha=0.5)
    _curves(accepted, held, "agreement", "held-out text, likeliest token", marker="o")
    _curves(accepted, engine, "acceptance", "engine, accepted / proposed", marker="s", linestyle="--")
    accepted.set(xlabel="batches", ylabel="share accepted, by depth", ylim=(0, 1))
    for axes in (losses, accepted):
        if axes.lines:
            axes.legend(fontsize="small")
    beside = Path(png).with_suffix(".part")
    figure.savefig(beside, format="png", dpi=120)
    beside.replace(png)
    return True


def _curves(axes: Any, lines: Sequence[Mapping[str, Any]], name: str, label: str, **style: Any) -> None:
    """One curve, or one a depth."""
    seen = [line for line in lines if name in line]
    if not seen:
        return
    steps = [line["step"] for line in seen]
    many = isinstance(seen[-1][name], list)
    for depth in range(len(seen[-1][name]) if many else 1):
        values = [line[name][depth] if many else line[name] for line in seen]
        axes.plot(steps, values, label=f"{label}, depth {depth + 1}" if many else label, **style)
