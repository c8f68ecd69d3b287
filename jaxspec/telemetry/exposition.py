"""Telemetry as text that Prometheus scrapes, in its exposition format, version 0.0.4.

# HELP jaxspec_rounds_total Rounds in which the row's source was this one.
# TYPE jaxspec_rounds_total counter
jaxspec_rounds_total{domain="code",source="lookup"} 12
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Metric(NamedTuple):
    """A family of samples, one a domain and source."""

    name: str  # without jaxspec_
    kind: str  # counter | gauge
    help: str
    key: str  # in a source's numbers; a list there has a sample a depth, from 1


METRICS = (
    Metric("rounds_total", "counter", "Rounds in which the row's source was this one.", "rounds"),
    Metric("tokens_total", "counter", "Tokens emitted in these rounds.", "tokens"),
    Metric("drafts_proposed_total", "counter", "Drafts proposed at a depth.", "proposed_by_depth"),
    Metric("drafts_accepted_total", "counter", "Drafts accepted at a depth.", "accepted_by_depth"),
    Metric("catch_up_tokens_total", "counter", "Tokens that a lagging draft took to catch up.", "catch_up_tokens"),
    Metric("decode_seconds_total", "counter", "Seconds of decoding, shared out by {seconds_from}.", "seconds"),
    Metric("mean_accepted_tokens", "gauge", "Tokens a round, the target's own included.", "mean_accepted_tokens"),
    Metric("time_share", "gauge", "Share of the domain's seconds, 0 to 1.", "share_of_time"),
    Metric("tokens_won", "gauge", "Tokens beyond those of plain decoding in the same seconds.", "tokens_won"),
)


def exposition(telemetry: Mapping[str, Any]) -> str:
    """The text, of what `ByDomain.as_dict` gives; a number that is not known has no sample."""
    lines: list[str] = []
    for metric in METRICS:
        name, said = f"jaxspec_{metric.name}", metric.help.format(seconds_from=telemetry["seconds_from"])
        lines += [f"# HELP {name} {escape(said)}", f"# TYPE {name} {metric.kind}"]
        lines += [f"{name}{{{labels}}} {value!r}" for labels, value in _samples(telemetry, metric)]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Backslash and line feed, as the format has them everywhere."""
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _samples(telemetry: Mapping[str, Any], metric: Metric) -> Iterator[tuple[str, int | float]]:
    for domain, about in telemetry["domains"].items():
        for source, row in about["sources"].items():
            labels, value = f"{_label('domain', domain)},{_label('source', source)}", row[metric.key]
            if isinstance(value, list):  # as many depths as were proposed, so that a rate has both its numbers
                depths = range(len(row["proposed_by_depth"]))
                yield from ((f'{labels},depth="{i + 1}"', value[i] if i < len(value) else 0) for i in depths)
            elif value is not None:
                yield labels, value


def _label(name: str, value: str) -> str:
    quoted = escape(value).replace('"', r"\"")
    return f'{name}="{quoted}"'
