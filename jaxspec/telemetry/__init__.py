"""What happened: counters inside the step, reports on the host."""

from jaxspec.telemetry.counters import Counters, count, init_counters

__all__ = ["Counters", "count", "init_counters"]
