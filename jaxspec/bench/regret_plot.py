"""A picture of regret: one panel a process, one curve a selector."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def plot_regrets(reports: Sequence[dict[str, Any]], png: str | Path) -> None:
    """Draw what `jaxspec.bench.processes.regrets` reports, as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0 * len(reports), 7.5), layout="constrained")
    against = {"regret_to_best_fixed": "best fixed choice", "regret_to_oracle": "oracle"}
    panels = figure.subplots(2, len(reports), squeeze=False)
    for column, report in enumerate(reports):
        for axes, (name, said) in zip(panels[:, column], against.items(), strict=True):
            for player, each in report["players"].items():
                style = "--" if player == "informed" else "-"
                axes.plot(report["positions"], each[name], style, label=f"{player} ({each['rate']:.2f})")
            axes.axhline(0, color="0.7", linewidth=0.8)
            axes.set(xlabel="tokens", ylabel=f"cost beyond the {said}")
            axes.legend(fontsize="small", title="tokens a unit of cost", title_fontsize="small")
        panels[0, column].set_title(f"{report['process']}, best fixed {report['best_fixed']['choice']}")
    figure.savefig(png, format="png", dpi=110)


__all__ = ["plot_regrets"]
