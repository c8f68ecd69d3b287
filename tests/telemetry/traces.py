"""Traces written by hand, for pages."""

import dataclasses

from jaxspec.telemetry import Mark, Round, Trace

SOURCES = ("none", "lookup", "lm:small")
HOSTILE = '</script><script>document.title = "taken"</script><img src=x onerror="1">&lt;\r\n\t<!--\u202e'
"""Text that would do harm were it not escaped."""


def a_round(number: int, source: str, proposed: int, accepted: int, texts: list[str], **more) -> Round:
    """A round that gave `texts`."""
    own = "plain" if not proposed else "corrected" if accepted < proposed else "bonus"
    marks = tuple(
        Mark(7 + index, text, "accepted" if index < accepted else own, source, 0.5) for index, text in enumerate(texts)
    )
    return Round(number, source, more.pop("lookahead", None), proposed, accepted, 0.25, marks, **more)


def a_trace(*texts: list[str]) -> Trace:
    """A row of one plain round and one round of drafts for each list of texts, the last one rejected."""
    rows = []
    for pieces in texts:
        plain = a_round(1, "none", 0, 0, pieces[:1])
        told = {"signals": {"margin": 0.25, "match@lookup": 3.0}, "estimates": {"tokens@lookup": 2.5}, "lookahead": 9}
        rows.append([plain, a_round(2, "lookup", len(pieces), len(pieces) - 2, pieces[1:], **told)])
    return Trace("a title", {"select": "rule"}, SOURCES, rows, ("a prompt",) * len(rows), ("stop",) * len(rows))


def long_trace(tokens: int) -> Trace:
    """Rounds of four tokens, by every source in turn."""
    rounds = [
        a_round(1 + index, SOURCES[1 + index % 2], 3, 3, [f" {index}", "a", " b", "\n"]) for index in range(tokens // 4)
    ]
    return dataclasses.replace(a_trace(["x", "y"]), rows=[rounds])
