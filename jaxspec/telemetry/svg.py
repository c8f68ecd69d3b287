"""Plots as HTML: the shapes are SVG that stretches with the page, the numbers around them text that does not."""

import html
import math
from collections.abc import Sequence
from typing import NamedTuple


class Axis(NamedTuple):
    """An axis from 0."""

    label: str
    most: float  # where it ends
    format: str = "g"  # of the numbers at its ticks, as in `format`
    steps: int = 4  # from tick to tick, about
    names: Sequence[str] = ()  # in place of numbers: of the places 0 to 1, 1 to 2, ..


class Series(NamedTuple):
    """Points of one kind."""

    name: str
    points: Sequence[tuple[float, float]]  # in the axes' units
    style: str = "ink"  # a class of page.css: ink, s0, s1, ...
    dots: bool = False  # drawn one by one; else as a line


class Bar(NamedTuple):
    """A box on the x axis."""

    begin: float
    width: float
    height: float
    style: str  # a class of page.css
    shadow: float = 0.0  # height of a faint box behind it
    key: str = ""  # what the page's script finds it by


WIDE, HIGH = 1000.0, 100.0
"""Size of the box that shapes are drawn in; the page stretches it."""


def svg_line(title: str, series: Sequence[Series], x: Axis, y: Axis) -> str:
    """Lines and dots."""
    shapes = []
    for each in series:
        if not each.points:
            continue
        places = [(_at(px, x) * WIDE, (1 - _at(py, y)) * HIGH) for px, py in each.points]
        if each.dots:  # a line without length and with round ends stays round however the picture is stretched
            path = "".join(f"M{left:.1f} {top:.2f}h0" for left, top in places)
        else:
            path = "M" + "L".join(f"{left:.1f} {top:.2f}" for left, top in places)
        kind = "dots" if each.dots else "line"
        shapes.append(f'<path class="{kind} {each.style}" d="{path}"><title>{html.escape(each.name)}</title></path>')
    return plot(title, "".join(shapes), x, y)


def svg_bars(title: str, bars: Sequence[Bar], x: Axis, y: Axis) -> str:
    """Boxes side by side."""
    shadows: dict[str, str] = {}
    boxes = []
    for bar in bars:
        left, width = _at(bar.begin, x) * WIDE, _at(bar.width, x) * WIDE
        width -= min(0.08 * width, 1.0)  # a gap between neighbours
        height, behind = _at(bar.height, y) * HIGH, _at(bar.shadow, y) * HIGH
        if behind > height:
            box = f"M{left:.2f} {HIGH - behind:.2f}h{width:.2f}v{behind - height:.2f}h{-width:.2f}z"
            shadows[bar.style] = shadows.get(bar.style, "") + box
        key = f' data-key="{html.escape(bar.key)}"' if bar.key else ""
        place = f'x="{left:.2f}" y="{HIGH - height:.2f}" width="{width:.2f}" height="{height:.2f}"'
        boxes.append(f'<rect class="bar {bar.style}"{key} {place}/>')
    faint = [f'<path class="shadow {style}" d="{path}"/>' for style, path in shadows.items()]
    return plot(title, "".join([*faint, *boxes]), x, y)


def plot(title: str, shapes: str, x: Axis, y: Axis) -> str:
    """A figure: its title, two axes with ticks, and shapes in a box of WIDE x HIGH whose y grows downwards."""
    across, up = ticks(x), ticks(y)
    lines = "".join(f'<path class="grid" d="M0 {(1 - _at(tick, y)) * HIGH:.2f}h{WIDE:.0f}"/>' for tick in up)
    left = "".join(f'<span style="top:{100 - 100 * _at(tick, y):.2f}%">{tick:{y.format}}</span>' for tick in up)
    below = "".join(f'<span style="left:{100 * _at(tick, x):.2f}%">{tick:{x.format}}</span>' for tick in across)
    if x.names:
        below = "".join(
            f'<span class="name" style="left:{100 * _at(place + 0.5, x):.2f}%;width:{100 * _at(1.0, x):.2f}%" '
            f'title="{html.escape(name)}">{html.escape(name)}</span>'
            for place, name in enumerate(x.names)
        )
    words = html.escape(title)
    return (
        f'<figure class="plot"><figcaption>{words}</figcaption><div class="axes">'
        f'<div class="y" aria-hidden="true">{left}</div>'
        f'<svg viewBox="0 0 {WIDE:.0f} {HIGH:.0f}" preserveAspectRatio="none" role="img" aria-label="{words}">'
        f'{lines}{shapes}</svg><div class="x" aria-hidden="true">{below}</div></div>'
        f'<p class="label">{html.escape(y.label)} over {html.escape(x.label)}</p></figure>'
    )


def ticks(axis: Axis) -> list[float]:
    """Round numbers from 0 to the axis' end: steps of 1, 2 or 5 times a power of ten."""
    if axis.most <= 0:
        return [0.0]
    rough = axis.most / axis.steps
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * by for by in (1, 2, 5, 10) if power * by >= rough * 0.999)
    return [step * index for index in range(int(axis.most / step * 1.000001) + 1)]


def _at(value: float, axis: Axis) -> float:
    """Where a value lies on the axis, 0 to 1."""
    return min(max(value / axis.most, 0.0), 1.0) if axis.most > 0 else 0.0
