"""A trace as one self-contained HTML page: nothing is loaded from elsewhere, and what a model wrote stays text."""

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

from jaxspec.telemetry.svg import Axis, Bar, Series, svg_bars, svg_line
from jaxspec.telemetry.trace import MEANING, Mark, Round, Trace, as_dict

COLOURS = 8
"""Colours of page.css besides that of "none"; a ninth source takes the first again."""

ROLLING = 16
"""Rounds with drafts that a point of the acceptance curve looks back over."""


def page(trace: Trace) -> str:
    """The page of a trace: every row's text by source, and below it how its rounds went."""
    body = [
        f"<header><h1>{html.escape(trace.title)}</h1>{headline(trace.rows)}{settings(trace.settings)}</header>",
        legend(trace.sources),
        *(section(trace, index) for index in range(len(trace.rows))),
        '<noscript><p class="note">Without scripts this page shows no details of a token.</p></noscript>',
        '<aside id="card" role="tooltip" hidden></aside>',
    ]
    return document(trace.title, "".join(body), data=as_dict(trace), script=_asset("page.js"))


def document(title: str, body: str, *, data: Any = None, script: str = "") -> str:
    """A whole page around a body of HTML.

    Args:
        title: plain text.
        data: what the script reads, as JSON, from the element "data".
        script: the one script that the browser is told to run; any other on the page is refused.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    stored = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{_asset('page.css')}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n"
        f'<script type="application/json" id="data">{stored}</script>\n<script>{script}</script>\n</body>\n</html>\n'
    )


def style_of(source: str, sources: Sequence[str]) -> str:
    """The class of page.css that has a source's colour; the first source is plain decoding's grey."""
    index = sources.index(source)
    return "s0" if index == 0 else f"s{(index - 1) % COLOURS + 1}"


def headline(rows: Sequence[Sequence[Round]]) -> str:
    """The totals, as large numbers."""
    every = [each for rounds in rows for each in rounds]
    seconds = sum({each.number: each.seconds for each in every}.values())  # rows share their rounds
    tokens, proposed = sum(len(each.marks) for each in every), sum(each.proposed for each in every)
    facts = [
        (f"{tokens / seconds:.1f}" if seconds else "-", "tokens a second"),
        (f"{tokens / len(every):.2f}" if every else "-", "tokens a round"),
        (f"{sum(each.accepted for each in every) / proposed:.0%}" if proposed else "-", "of drafts accepted"),
        (f"{tokens}", "tokens"),
        (f"{seconds:.2f} s", "decoding"),
    ]
    cells = "".join(f"<div><b>{value}</b> <span>{what}</span></div>" for value, what in facts)
    return f'<div class="facts">{cells}</div>'


def settings(given: Mapping[str, str]) -> str:
    """Names and values in one flowing line."""
    pairs = "".join(
        f"<div><dt>{html.escape(name)}</dt> <dd>{html.escape(value)}</dd></div>" for name, value in given.items()
    )
    return f'<dl class="settings">{pairs}</dl>' if pairs else ""


def legend(sources: Sequence[str]) -> str:
    """What colours and marks say; a press shows one alone."""
    colours = [
        f'<button type="button" class="key {style_of(name, sources)}" aria-pressed="false" '
        f'data-only="{style_of(name, sources)}"><i class="swatch"></i>{html.escape(name)}</button>'
        for name in sources
    ]
    marks = [
        f'<button type="button" class="key" aria-pressed="false" data-only="{mark}" title="{html.escape(meaning)}">'
        f'<span class="sample ink {mark}">{mark}</span></button>'
        for mark, meaning in MEANING.items()
    ]
    return (
        f'<nav class="legend" aria-label="Legend"><div><span>source</span>{"".join(colours)}</div>'
        f"<div><span>token</span>{''.join(marks)}</div></nav>"
    )


def section(trace: Trace, index: int) -> str:
    """One row: its prompt, its text, its rounds."""
    rounds = trace.rows[index]
    begun = trace.prompts[index] if index < len(trace.prompts) else ""
    ended = trace.finish_reasons[index] if index < len(trace.finish_reasons) else ""
    many = len(trace.rows) > 1
    return "".join(
        [
            f'<section id="r{index + 1}">',
            f"<h2>Row {index + 1} of {len(trace.rows)}</h2>{headline([rounds])}" if many else "",
            prompt(begun) if begun else "",
            f'<div class="text" role="group" aria-label="Text of row {index + 1}, token by token; arrow keys move" '
            f'data-row="{index}" dir="auto">{tokens(rounds, trace.sources)}</div>',
            f'<p class="note">Ended: {html.escape(ended)}.</p>' if ended else "",
            plots(rounds, trace.sources, index) if rounds else '<p class="note">No round was run.</p>',
            shares(rounds, trace.sources) if rounds else "",
            "</section>",
        ]
    )


def prompt(text: str) -> str:
    """What a row began with; folded away, since it may be long."""
    first = " ".join(text.split())
    first = first if len(first) <= 90 else first[:89] + "…"
    return (
        f'<details class="prompt"><summary>Prompt <span>{html.escape(first)}</span></summary>'
        f"<pre>{written(text)}</pre></details>"
    )


def tokens(rounds: Iterable[Round], sources: Sequence[str]) -> str:
    """Every token as a span, in order; their text content is the text."""
    return "".join(token(mark, style_of(mark.source, sources)) for each in rounds for mark in each.marks)


def token(mark: Mark, style: str) -> str:
    """One token. What it is called, where it has no text, is drawn but no text of the page."""
    kind = "" if mark.text else ' special" data-name="' + (html.escape(mark.name) or "⋯")
    return f'<span class="t {style} {mark.mark}{kind}">{written(mark.text)}</span>'


def written(text: str) -> str:
    """Escaped text, a sign drawn (and no text) where a line ends or a tab stands."""
    safe = html.escape(text, quote=False).replace("\r", "&#13;")
    return safe.replace("\n", '<i class="nl"></i>\n').replace("\t", '<i class="tab"></i>\t')


def plots(rounds: Sequence[Round], sources: Sequence[str], row: int) -> str:
    """Acceptance over time, and every round on the same clock."""
    ends, clock = [], 0.0
    for each in rounds:
        clock += each.seconds
        ends.append(clock)
    across = Axis("seconds", clock, steps=max(8, len(rounds) // 30))  # the plot of many rounds is wide
    drafted = [(end, each) for end, each in zip(ends, rounds, strict=True) if each.proposed]
    dots = [
        Series(
            name,
            [(end, each.accepted / each.proposed) for end, each in drafted if each.source == name],
            style_of(name, sources),
            dots=True,
        )
        for name in sources
    ]
    curve = Series(f"last {ROLLING} rounds", rolling(drafted))
    bars = [
        Bar(
            end - each.seconds,
            each.seconds,
            float(len(each.marks)),
            style_of(each.source, sources),
            shadow=1.0 + each.proposed,
            key=f"{row},{index}",
        )
        for index, (end, each) in enumerate(zip(ends, rounds, strict=True))
    ]
    most = max(bar.shadow for bar in bars)
    title = f"Acceptance: each round's drafts (dots), the last {ROLLING} rounds with drafts (line)"
    accepted = svg_line(title, [*dots, curve], across, Axis("share of drafts accepted", 1.0, ".0%", 2))
    timeline = svg_bars(
        "Rounds: tokens each gave, and faintly what it could have given", bars, across, Axis("tokens", most)
    )
    return f'<div class="plots" style="--rounds:{len(rounds)}">{accepted if drafted else ""}{timeline}</div>'


def rolling(drafted: Sequence[tuple[float, Round]], over: int = ROLLING) -> list[tuple[float, float]]:
    """(seconds, accepted / proposed) of the last `over` rounds with drafts, at each of them."""
    out = []
    for index, (end, _) in enumerate(drafted):
        last = [each for _, each in drafted[max(0, index + 1 - over) : index + 1]]
        out.append((end, sum(each.accepted for each in last) / sum(each.proposed for each in last)))
    return out


def shares(rounds: Sequence[Round], sources: Sequence[str]) -> str:
    """Which source had how much of the rounds, the tokens and the seconds: bars, and the numbers."""
    used = [name for name in sources if any(each.source == name for each in rounds)]
    mine = {name: [each for each in rounds if each.source == name] for name in used}
    parts = {
        "rounds": [float(len(mine[name])) for name in used],
        "tokens": [float(sum(len(each.marks) for each in mine[name])) for name in used],
        "seconds": [sum(each.seconds for each in mine[name]) for name in used],
    }
    styles = [style_of(name, sources) for name in used]
    stacks = "".join(
        f"<div><span>{what}</span>{stacked(list(zip(styles, values, strict=True)))}</div>"
        for what, values in parts.items()
    )
    head = ["rounds", "tokens", "seconds", "drafts", "accepted", "tokens a round", "ms a token"]
    lines = [[f'<i class="swatch {style_of(name, sources)}"></i>{html.escape(name)}', *_numbers(mine[name])]
             for name in used]  # fmt: skip
    return f'<h3>Share by source</h3><div class="stacks">{stacks}</div>{numbers(["source", *head], lines)}'


def _numbers(rounds: Sequence[Round]) -> list[str]:
    count, seconds = sum(len(each.marks) for each in rounds), sum(each.seconds for each in rounds)
    proposed, accepted = sum(each.proposed for each in rounds), sum(each.accepted for each in rounds)
    share = f"{accepted} ({accepted / proposed:.0%})" if proposed else "-"
    pace = f"{1000 * seconds / count:.1f}" if count else "-"
    return [str(len(rounds)), str(count), f"{seconds:.2f}", str(proposed), share, f"{count / len(rounds):.2f}", pace]


def stacked(parts: Sequence[tuple[str, float]]) -> str:
    """A bar of (class, amount) side by side, with each one's percentage where there is room."""
    whole = sum(amount for _, amount in parts) or 1.0
    return '<div class="stack">{}</div>'.format(
        "".join(
            f'<i class="{style}" style="width:{100 * amount / whole:.2f}%">'
            f"{f'<b>{amount / whole:.0%}</b>' if amount / whole > 0.07 else ''}</i>"
            for style, amount in parts
            if amount
        )
    )


def numbers(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table; the cells are HTML, the first of each line names it."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>' for first, *rest in lines
    )
    return f'<div class="table"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _asset(name: str) -> str:
    return resources.files("jaxspec.telemetry").joinpath(name).read_text(encoding="utf-8")
