"""Charts as inline SVG. Colours are CSS classes, so that the page sets them for light and for dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

NUM_COLOURS = 8
_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 12, 44
_MAX_TICKS = 6

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    label: str
    points: Sequence[Point]
    colour: int = 0


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values on one side of the chart."""

    label: str
    low: float
    high: float
    is_logarithmic: bool = False

    @classmethod
    def over(cls, label: str, values: Sequence[float], *, is_logarithmic: bool = False) -> Axis:
        """An axis with room for all values; a linear one begins at 0."""
        known = [value for value in values if math.isfinite(value) and (value > 0 or not is_logarithmic)]
        high = max(known, default=1.0)
        low = min(known, default=high / 10) if is_logarithmic else 0.0
        return cls(label, low, high if high > low else low * 2 or 1.0, is_logarithmic)

    def place(self, value: float) -> float:
        """The position of `value` from 0 at the low end to 1 at the high end; values beyond are at the ends."""
        if self.is_logarithmic:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, share))

    def ticks(self) -> Iterator[float]:
        if self.is_logarithmic:
            decade = 10.0 ** math.floor(math.log10(self.low))
            steps = (1, 2, 5) if self.high / self.low < 1000 else (1,)
            while decade <= self.high:
                yield from (step * decade for step in steps if self.low <= step * decade <= self.high)
                decade *= 10
            return
        rough = (self.high - self.low) / _MAX_TICKS
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough)
        for index in range(math.ceil(self.low / step), math.floor(self.high / step + 1e-9) + 1):
            yield index * step


def lines(title: str, x: Axis, y: Axis, series: Sequence[Series], *, has_dots: bool = False) -> str:
    """A chart with one line for each series; `has_dots` marks its points."""

    def draw(place: Callable[[float, float], str]) -> Iterator[str]:
        for one in series:
            css = f"c{one.colour % NUM_COLOURS}"
            path = " ".join(place(*point) for point in one.points)
            if len(one.points) > 1:
                yield f'<polyline class="line {css} d{one.colour // NUM_COLOURS % 3}" points="{path}"/>'
            if has_dots or len(one.points) == 1:
                for point in one.points:
                    left, top = place(*point).split(",")
                    yield f'<circle class="dot {css}" cx="{left}" cy="{top}" r="3.5"/>'

    return _figure(title, x, y, draw, [(one.label, f"c{one.colour % NUM_COLOURS}") for one in series])


def dots(title: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    def draw(place: Callable[[float, float], str]) -> Iterator[str]:
        for one in series:
            for point in one.points:
                left, top = place(*point).split(",")
                yield f'<circle class="dot c{one.colour % NUM_COLOURS}" cx="{left}" cy="{top}" r="2"/>'

    return _figure(title, x, y, draw, [(one.label, f"c{one.colour % NUM_COLOURS}") for one in series])


@dataclass(frozen=True, slots=True)
class Bar:
    """One request, in seconds: `begin` to `middle` is the time to the first token, `middle` to `end` the rest."""

    begin: float
    middle: float
    end: float
    has_failed: bool = False


def bars(title: str, x: Axis, rows: Sequence[Bar]) -> str:
    height = max(2.0, min(8.0, 460 / max(1, len(rows))))
    y = Axis("requests, in the order in which they were sent", 0, len(rows) or 1)

    def draw(place: Callable[[float, float], str]) -> Iterator[str]:
        for index, row in enumerate(rows):
            marks = [float(place(value, 0).split(",")[0]) for value in (row.begin, row.middle, row.end)]
            top = _TOP + index * height
            for css, left, right in (("wait", marks[0], marks[1]), ("flow", marks[1], marks[2])):
                kind = "failed" if row.has_failed else css
                yield (
                    f'<rect class="{kind}" x="{left:.1f}" y="{top:.1f}" width="{max(right - left, 0.3):.1f}" '
                    f'height="{height * 0.8:.1f}"/>'
                )

    legend = [("until the first token", "wait"), ("tokens", "flow")]
    if any(row.has_failed for row in rows):
        legend.append(("failed", "failed"))
    return _figure(
        title, x, y, draw, legend, height=_TOP + _BOTTOM + round(height * max(1, len(rows))), has_y_ticks=False
    )


def _figure(
    title: str,
    x: Axis,
    y: Axis,
    draw: Callable[[Callable[[float, float], str]], Iterator[str]],
    legend: Sequence[tuple[str, str]],
    *,
    height: int = _HEIGHT,
    has_y_ticks: bool = True,
) -> str:
    right, bottom = _WIDTH - _RIGHT, height - _BOTTOM

    def left_of(value: float) -> float:
        return _LEFT + x.place(value) * (right - _LEFT)

    def top_of(value: float) -> float:
        return bottom - y.place(value) * (bottom - _TOP)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">']
    for value in x.ticks():
        at = left_of(value)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(f'<text class="tick middle" x="{at:.1f}" y="{bottom + 16}">{_tick(value)}</text>')
    for value in y.ticks() if has_y_ticks else ():
        at = top_of(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="tick end" x="{_LEFT - 6}" y="{at + 4:.1f}">{_tick(value)}</text>')
    parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>')
    parts += draw(lambda one, other: f"{left_of(one):.1f},{top_of(other):.1f}")
    centre = (_TOP + bottom) / 2
    parts.append(f'<text class="label middle" x="{(_LEFT + right) / 2}" y="{height - 8}">{escape(x.label)}</text>')
    parts.append(
        f'<text class="label middle" x="14" y="{centre}" transform="rotate(-90 14 {centre})">{escape(y.label)}</text>'
    )
    parts.append("</svg>")
    keys = "".join(f'<li><span class="key {css}"></span>{escape(label)}</li>' for label, css in legend if label)
    listed = f"<ul class=legend>{keys}</ul>" if keys else ""
    return f"<figure><figcaption>{escape(title)}</figcaption>{listed}{''.join(parts)}</figure>"


def _tick(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
