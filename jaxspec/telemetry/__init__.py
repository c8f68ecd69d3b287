"""What happened: counters inside the step, reports on the host, compilations kept and counted."""

from jaxspec.telemetry.compilation import cache_folder, compilations, keep_compilations
from jaxspec.telemetry.counters import Counters, count, init_counters
from jaxspec.telemetry.report import Chunk, json_lines, stats, table, time_shares

__all__ = [
    "Chunk",
    "Counters",
    "cache_folder",
    "compilations",
    "count",
    "init_counters",
    "json_lines",
    "keep_compilations",
    "stats",
    "table",
    "time_shares",
]
