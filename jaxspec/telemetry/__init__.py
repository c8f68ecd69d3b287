"""What happened: counters inside the step, reports on the host, compilations kept and counted."""

from jaxspec.telemetry.by_domain import ALL, ByDomain, Done, Price, Tally, check_form, since
from jaxspec.telemetry.compilation import cache_folder, compilations, keep_compilations
from jaxspec.telemetry.counters import Counters, count, init_counters
from jaxspec.telemetry.page import document, page
from jaxspec.telemetry.report import Chunk, json_lines, stats, table, time_shares
from jaxspec.telemetry.trace import Mark, Recorder, Round, Trace, as_dict

__all__ = [
    "ALL",
    "ByDomain",
    "Chunk",
    "Counters",
    "Done",
    "Mark",
    "Price",
    "Recorder",
    "Round",
    "Tally",
    "Trace",
    "as_dict",
    "cache_folder",
    "check_form",
    "compilations",
    "count",
    "document",
    "init_counters",
    "json_lines",
    "keep_compilations",
    "page",
    "since",
    "stats",
    "table",
    "time_shares",
]
