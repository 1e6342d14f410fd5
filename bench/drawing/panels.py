"""The kinds of panels: bars, ranges on a logarithmic scale, and lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.drawing.svg import Canvas

HEAD = 46  # pixels above a panel's plot: its title and what it shows
_GAP = 15  # between two labels at the least
_LETTER = 7  # how wide a letter is at the most, on average


@dataclass(frozen=True)
class Box:
    """Where a panel stands."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height


@dataclass(frozen=True)
class Bar:
    """`colour` is ours, ours-too or peer; `spread` the least and the most of the rounds. Without a value, `words`
    say why.
    """

    name: str
    value: float | None
    words: str
    colour: str
    spread: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Range:
    """A dot at `middle`, a line to `far`."""

    name: str
    middle: float
    far: float
    words: str
    colour: str


@dataclass(frozen=True)
class Curve:
    """Values at some of the panel's places; the name stands at the end."""

    name: str
    points: Sequence[tuple[int, float]]
    colour: str


@dataclass(frozen=True)
class Mark:
    """A dashed line across the plot."""

    value: float
    words: str


def title(canvas: Canvas, x: float, words: str, about: Mapping[str, Any]) -> None:
    """What a picture shows, on what machine and when."""
    canvas.text(x, 40, words, size=21, bold=True)
    note = "a quick look, not for quoting: " if about["quick"] else ""
    canvas.text(x, 60, f"{note}{about['cores']} cores, {about['kernel']}, {about['made']}", "soft")


def head(canvas: Canvas, box: Box, title: str, what: str) -> Box:
    """A panel's title; returns the room below it."""
    canvas.text(box.x, box.y + 14, title, size=15, bold=True)
    canvas.text(box.x, box.y + 32, what, "soft", size=12)
    return Box(box.x, box.y + HEAD, box.width, box.height - HEAD)


def bars(canvas: Canvas, box: Box, rows: Sequence[Bar], marks: Sequence[Mark], *, label: float = 150) -> None:
    """One bar a row, to a linear scale; a mark is a line from top to bottom with its words below."""
    left, room = box.x + label, box.width - label - 66
    most = max(
        [max(row.value, row.spread[1]) for row in rows if row.value] + [mark.value for mark in marks], default=1.0
    )
    bottom = box.bottom - (18 * len(marks) + 4)
    step = (bottom - box.y) / max(len(rows), 1)
    for number, mark in enumerate(marks):
        x, y = left + room * mark.value / most, bottom + 12 + 18 * number
        canvas.line(x, box.y - 2, x, y - 12, "floor", width=1.5, dashed=True)
        half = _LETTER * len(mark.words) / 2
        centre = min(max(x, box.x + half), box.right - half)
        canvas.text(centre, y, mark.words, "floor-text", size=12, anchor="middle")
    for number, row in enumerate(rows):
        _bar(canvas, row, left, box.y + step * number, step, room / most)


def _bar(canvas: Canvas, row: Bar, left: float, y: float, step: float, scale: float) -> None:
    middle, ours = y + step / 2, row.colour != "peer"
    canvas.text(left - 10, middle + 4.5, row.name, anchor="end", bold=ours)
    if row.value is None:
        canvas.text(left, middle + 4.5, row.words, "soft", size=12, over=True)
        return
    least, most = (left + value * scale for value in row.spread)
    end = left + row.value * scale
    canvas.bar(left, y + step * 0.16, end - left, step * 0.68, row.colour)
    if most - least > 4:
        canvas.line(least, middle, most, middle, "spread", width=1.5)
        for x in (least, most):
            canvas.line(x, middle - 4, x, middle + 4, "spread", width=1.5)
    canvas.text(max(end, most) + 8, middle + 4.5, row.words, "ink" if ours else "soft", bold=ours, over=True)


def ranges(canvas: Canvas, box: Box, rows: Sequence[Range], unit: str, *, label: float = 150) -> None:
    """One row each, on a logarithmic scale of powers of ten."""
    if not rows:
        return
    left, right = box.x + label, box.right - 96
    low = math.floor(math.log10(min(row.middle for row in rows)))
    high = math.ceil(math.log10(max(row.far for row in rows)))
    high = max(high, low + 1)

    def at(value: float) -> float:
        return left + (right - left) * (math.log10(value) - low) / (high - low)

    bottom = box.bottom - 22
    for power in range(low, high + 1):
        x = at(10.0**power)
        canvas.line(x, box.y, x, bottom, "grid")
        canvas.text(x, bottom + 17, f"{10.0**power:g} {unit}", "soft", size=12, anchor="middle")
    step = (bottom - box.y) / len(rows)
    for number, row in enumerate(rows):
        y = box.y + step * (number + 0.5)
        ours = row.colour != "peer"
        canvas.text(left - 10, y + 4.5, row.name, anchor="end", bold=ours)
        canvas.line(at(row.middle), y, at(row.far), y, f"{row.colour}-line", width=5)
        canvas.dot(at(row.middle), y, row.colour, 6)
        canvas.text(at(row.far) + 9, y + 4.5, row.words, "ink" if ours else "soft", size=12, bold=ours, over=True)


def curves(
    canvas: Canvas,
    box: Box,
    places: Sequence[str],
    rows: Sequence[Curve],
    ticks: Sequence[float],
    *,
    log: bool,
    marks: Sequence[Mark] = (),
    label: float = 130,
) -> None:
    """Lines over places, which stand at equal distances; `ticks` are the scale, from its lowest to its highest."""
    left, right, bottom = box.x + 58, box.right - label, box.bottom - 22
    low, high = (math.log10(ticks[0]), math.log10(ticks[-1])) if log else (ticks[0], ticks[-1])

    def x_of(place: int) -> float:
        return left + 14 + (right - left - 22) * place / max(len(places) - 1, 1)

    def y_of(value: float) -> float:
        share = ((math.log10(value) if log else value) - low) / (high - low)
        return bottom - (bottom - box.y) * share

    for tick in ticks:
        canvas.line(left, y_of(tick), right, y_of(tick), "grid")
        canvas.text(left - 8, y_of(tick) + 4, f"{tick:,.0f}", "soft", size=12, anchor="end")
    for number, place in enumerate(places):
        canvas.text(x_of(number), bottom + 17, place, "soft", size=12, anchor="middle")
    for mark in marks:
        canvas.line(left, y_of(mark.value), right, y_of(mark.value), "floor", width=1.5, dashed=True)
        canvas.text(right + 6, y_of(mark.value) + 4, mark.words, "floor-text", size=12)
    for row in sorted(rows, key=lambda row: row.colour != "peer"):
        points = [(x_of(place), y_of(value)) for place, value in row.points]
        canvas.path(points, f"{row.colour}-line", width=2.5 if row.colour != "peer" else 2)
        for point in points:
            canvas.dot(*point, row.colour, 3.5)
    taken = [y_of(mark.value) for mark in marks]
    for row in sorted(rows, key=lambda row: -row.points[-1][1]):
        last, value = row.points[-1]
        ours, x, y = row.colour != "peer", x_of(last) + 10, y_of(value)
        if last == len(places) - 1:
            x, y = right + 6, _free(y, taken)
            taken.append(y)
        canvas.text(x, y + 4, row.name, "ink" if ours else "soft", size=12, bold=ours, over=True)


def _free(y: float, taken: Sequence[float]) -> float:
    """The nearest place at or below y where a label covers none of the others."""
    while any(abs(y - other) < _GAP for other in taken):
        y += 1
    return y
