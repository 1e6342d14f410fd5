"""The picture of a whole run: four panels, readable on light and dark pages."""

from __future__ import annotations

from bench import ours
from bench.drawing import panels
from bench.drawing.panels import Bar, Box, Curve, Mark, Range
from bench.drawing.svg import Canvas
from bench.measurements import claim_cost
from bench.measurements.throughput import WORKERS
from bench.names import TITLES
from bench.peers import PEERS
from bench.record import Record, Series

WIDTH, HEIGHT = 1120, 830
_MARGIN = 28
_COLUMN = (WIDTH - 3 * _MARGIN) / 2
_ROW = 340
_TOP = 84
_SHORT = TITLES | {
    ours.AUTO.name: "job-supervisor",
    ours.ONE.name: "… prefetch = 1",
}


def draw(record: Record) -> str:
    """The picture as SVG."""
    canvas = Canvas(WIDTH, HEIGHT, "job-supervisor and its peers: throughput, latency, and the cost of a claim")
    about = record.about
    canvas.text(_MARGIN, 40, "job-supervisor and its peers, in one run", size=21, bold=True)
    where = f"{about['cores']} cores, {about['kernel']}, Python {about['versions']['Python']}, {about['made']}"
    note = "a quick look, not for quoting: " if about["quick"] else "medians of contestants that took turns: "
    canvas.text(_MARGIN, 60, note + where, "soft")
    left, right = _MARGIN, 2 * _MARGIN + _COLUMN
    low = _TOP + _ROW + 44
    _throughput(canvas, Box(left, _TOP, _COLUMN, _ROW), record)
    _scaling(canvas, Box(right, _TOP, _COLUMN, _ROW), record)
    _latency(canvas, Box(left, low, _COLUMN, _ROW), record)
    _claims(canvas, Box(right, low, _COLUMN, _ROW), record)
    return str(canvas)


def _colour(name: str) -> str:
    if name == ours.ONE.name:
        return "ours-too"
    return "ours" if name.startswith("ours") else "peer"


def _throughput(canvas: Canvas, box: Box, record: Record) -> None:
    plot = panels.head(
        canvas,
        box,
        "Throughput with 2 workers",
        "no-op jobs a second, with the least and the most of the rounds; more is better",
    )
    rows = []
    for name in (ours.AUTO.name, ours.ONE.name, *PEERS):
        series = record.get("throughput", name, "2")
        if series:
            spread = (min(series.values), series.highest)
            rows.append(Bar(_SHORT[name], series.median, _count(series.median), _colour(name), spread))
        else:
            rows.append(Bar(_SHORT[name], None, _why(record, name), _colour(name)))
    rows.sort(key=lambda row: -(row.value or 0))
    floor = record.get("throughput", "floor-1", "1")
    marks = [Mark(floor.median, f"a bare SQL loop, one commit a job: {_count(floor.median)}")] if floor else []
    panels.bars(canvas, plot, rows, marks)


def _scaling(canvas: Canvas, box: Box, record: Record) -> None:
    plot = panels.head(canvas, box, "Throughput by the number of workers", "no-op jobs a second, logarithmic")
    rows = []
    for name in (ours.AUTO.name, ours.ONE.name, *PEERS):
        found = [(place, record.get("throughput", name, str(workers))) for place, workers in enumerate(WORKERS)]
        points = [(place, series.median) for place, series in found if series]
        if points:
            rows.append(Curve(_SHORT[name], points, _colour(name)))
    if rows:
        ticks = [10.0**power for power in range(1, 6)]
        places = ["1 worker", *(f"{workers}" for workers in WORKERS[1:])]
        panels.curves(canvas, plot, places, rows, ticks, log=True, label=116)


def _latency(canvas: Canvas, box: Box, record: Record) -> None:
    what = "from the call that enqueues to the handler’s first line: median and 99 %; less is better"
    plot = panels.head(canvas, box, "Latency of an idle queue, 4 workers", what)
    rows = []
    for name, figure, title in [
        ("ours", "latency", "job-supervisor"),
        ("ours", "latency, synced", "… synced to disk"),
        *((name, "latency", TITLES[name]) for name in PEERS),
    ]:
        series = record.get(figure, name, "4")
        if series:
            colour = "ours-too" if figure.endswith("synced") else _colour(name)
            rows.append(_range(title, series, colour))
    rows.sort(key=lambda row: row.middle)
    panels.ranges(canvas, plot, rows, "ms")


def _range(title: str, series: Series, colour: str) -> Range:
    middle, far = series.median, series.percentile(0.99)
    return Range(title, middle, far, f"{_short(middle)} / {_short(far)} ms", colour)


def _claims(canvas: Canvas, box: Box, record: Record) -> None:
    what = "µs, settling the last job included, beside so many other rows in the table"
    plot = panels.head(canvas, box, "The cost of a claim", what)
    sizes = [rows for rows in claim_cost.SIZES if record.get("claim", "ours", f"finished: {rows}")]
    curves, values = [], []
    for kind, colour in zip(claim_cost.KINDS, ("ours", "ours-too", "peer"), strict=True):
        found = [(place, record.get("claim", "ours", f"{kind}: {size}")) for place, size in enumerate(sizes)]
        points = [(place, series.median) for place, series in found if series]
        values += [value for _, value in points]
        if points:
            curves.append(Curve(f"… {kind}", points, colour))
    if not curves:
        return
    limit = min(curve.points[0][1] for curve in curves) * 1.3
    step = _step(max([*values, limit]))
    ticks = [step * number for number in range(int(max([*values, limit]) / step) + 2)]
    marks = [Mark(limit, "goal: 1.3×")]
    panels.curves(canvas, plot, [f"{size:,}" for size in sizes], curves, ticks, log=False, marks=marks)


def _step(most: float) -> float:
    """A round distance of ticks, for about five of them."""
    return next((step for step in (5, 10, 20, 25, 50, 100, 200, 500) if most / step <= 6), 1000)


def _why(record: Record, name: str) -> str:
    reason = record.why_not("throughput", name)
    return f"not measured: {reason}" if len(reason) < 40 else f"not measured: {reason[:38]}…"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
