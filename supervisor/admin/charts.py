"""Charts as SVG. Shapes take their colours from CSS classes; there are no inline styles.

The shapes stretch with the page, so they contain no text: the template adds scales and legends around them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from supervisor.admin import formatting
from supervisor.admin.chart_data import Series

WIDTH, HEIGHT = 600.0, 100.0
_GAP = 0.22  # fraction of a bar's width that is left empty
_STEPS = (1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10)


def ceiling(value: float) -> float:
    """The top of a scale: the next round number."""
    if value <= 4:
        return 4.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in _STEPS if step * power >= value * (1 - 1e-9))


def top(series: Sequence[Series]) -> float:
    """The top of the scale for stacked bars."""
    return ceiling(max((sum(values) for values in zip(*(one.values for one in series), strict=True)), default=0.0))


def bars(series: Sequence[Series], times: Sequence[float], description: str, *, dated: bool = False) -> Markup:
    """Stacked bars of all series, one bar per time. A tooltip shows the numbers of each bar, with `dated` also its
    date.
    """
    highest = top(series)
    place = WIDTH / max(1, len(times))
    drawn = []
    for index, at in enumerate(times):
        values = [(one, one.values[index]) for one in series]
        if any(value for _, value in values):
            drawn.append(_bar(values, index * place, place, highest, _told(at, dated)))
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
    ).format(*(_short(WIDTH), _short(HEIGHT), description)) + Markup("{}{}</svg>").format(
        _grid(), Markup("").join(drawn)
    )


def spark(series: Series, description: str) -> Markup:
    """A small line chart with a filled area and its own scale."""
    highest = max(1.0, *series.values)
    step = WIDTH / max(1, len(series.values) - 1)
    points = [
        f"{_short(index * step)},{_short(HEIGHT - 2 - value / highest * (HEIGHT - 6))}"
        for index, value in enumerate(series.values)
    ]
    area = f"0,{_short(HEIGHT)} {' '.join(points)} {_short(WIDTH)},{_short(HEIGHT)}"
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<polygon class="fill-{}" points="{}"/><polyline class="line-{}" points="{}"/></svg>'
    ).format(_short(WIDTH), _short(HEIGHT), description, series.key, area, series.key, " ".join(points))


def _bar(values: Sequence[tuple[Series, float]], left: float, place: float, highest: float, when: Markup) -> Markup:
    told = ", ".join(f"{formatting.number(value)} {one.label}" for one, value in values if value)
    shapes, y = [], HEIGHT
    for one, value in values:
        if value:
            height = value / highest * HEIGHT
            y -= height
            shapes.append(
                Markup('<rect class="fill-{}" x="{}" y="{}" width="{}" height="{}"/>').format(
                    one.key, _short(left + place * _GAP / 2), _short(y), _short(place * (1 - _GAP)), _short(height)
                )
            )
    return Markup(
        '<g class="minute"><title {}: {}</title><rect class="place" x="{}" y="0" width="{}" height="{}"/>{}</g>'
    ).format(
        when,
        told,
        _short(left),
        _short(place),
        _short(HEIGHT),
        Markup("").join(shapes),
    )


def _told(at: float, dated: bool) -> Markup:
    """When a bar begins, which live.js puts into the browser's time zone."""
    return Markup('data-at="{}">{}').format(
        formatting.iso(at), formatting.day_and_clock(at) if dated else formatting.clock(at)
    )


def _grid() -> Markup:
    return Markup("").join(
        Markup('<line class="grid" x1="0" x2="{}" y1="{}" y2="{}"/>').format(_short(WIDTH), y, y)
        for y in ("0", _short(HEIGHT / 2), _short(HEIGHT))
    )


def _short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
