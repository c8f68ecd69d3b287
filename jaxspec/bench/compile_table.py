"""A compile check as a person reads it."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

MEMORY = {
    "target": "target's weights",
    "drafts": "drafts' weights",
    "caches": "caches",
    "other": "tokens, counters, constants",
    "temporaries": "temporaries",
    "code": "program",
    "total": "in all",
    "chip": "the chip's",
}


def tables(report: Mapping[str, Any]) -> list[Table]:
    """Memory, rounds, temporaries and what must not be."""
    return [_memory(report), _rounds(report), _temporaries(report), _findings(report)]


def _memory(report: Mapping[str, Any]) -> Table:
    memory, split = report["memory"], report["sharded"]
    mesh = ", ".join(f"{name}={size}" for name, size in report["mesh"].items())
    table = Table(
        title=f"memory of one {memory['chip_name']} of {report['devices']} ({mesh})",
        caption=f"{split['bytes_on_a_device'] / split['bytes']:.1%} of the target lies on each device"
        + ("" if memory["fits"] else "; it does NOT fit"),
    )
    table.add_column("what")
    table.add_column("GB", justify="right")
    for key, name in MEMORY.items():
        table.add_row(name, f"{memory[key] / 1e9:.3f}", end_section=key == "code")
    return table


def _rounds(report: Mapping[str, Any]) -> Table:
    exchanged = report["collectives"]
    count = ", ".join(f"{number} {kind}" for kind, number in exchanged["count"].items()) or "none"
    table = Table(
        title="least time of a round: bytes read on one device over its bandwidth",
        caption=f"collectives of the costliest round: {count}; {exchanged['bytes'] / 1e6:.2f} MB",
    )
    for name in ("round", "GB", "ms"):
        table.add_column(name, justify="left" if name == "round" else "right", overflow="fold")
    for each in report["rounds"]:
        table.add_row(each["round"], f"{each['bytes'] / 1e9:.3f}", f"{1e3 * each['seconds']:.2f}")
    return table


def _temporaries(report: Mapping[str, Any]) -> Table:
    table = Table(title="temporaries of 16 MB or more; they share one another's memory")
    for name in ("MB", "shape", "what", "how many", "made by"):
        table.add_column(name, justify="right" if name in ("MB", "how many") else "left", overflow="fold")
    for each in report["temporaries"]:
        maker = each["op_name"].removeprefix("jit(loop)/while/body/") or f"{each['name']} ({each['opcode']})"
        table.add_row(f"{each['bytes'] / 1e6:.1f}", each["shape"], each["what"], str(each["count"]), maker)
    if not report["temporaries"]:
        table.add_row("", "none", "", "", "")
    return table


def _findings(report: Mapping[str, Any]) -> Table:
    seconds = report["seconds"]
    table = Table(
        title="what must not be",
        caption=f"traced in {seconds['trace']:.0f} s, compiled in {seconds['compile']:.0f} s",
        show_header=False,
    )
    table.add_row("copies of a cache", str(len(report["cache_copies"])))
    table.add_row("loops inside a commit", str(len(report["commit_loops"])))
    table.add_row("loops over rows", str(len(report["row_loops"])))
    for sentence in report["violations"]:
        table.add_row("violation", sentence)
    return table
