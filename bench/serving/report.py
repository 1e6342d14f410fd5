"""The table and the picture of a run beside model servers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bench import tables
from bench.drawing import panels
from bench.drawing.panels import Bar, Box, Range
from bench.drawing.svg import Canvas
from bench.record import Record, Series
from bench.serving import turns
from bench.serving.contestants import BARE, OURS, PEERS, QUEUE, THREE, TITLES, WORKERS
from bench.serving.goals import SERVING_GOALS
from bench.serving.measures import MEASURES
from bench.tables import NONE, median, table

_SERVERS = OURS | PEERS
_SHORT = {
    "ours": "job-supervisor, queue",
    "ours-run": "POST /run",
    "ours-preload": "POST /run, preload",
    "ours-spare": "POST /run, preload, spare",
}
_WIDTH, _HEIGHT, _MARGIN, _TOP, _ROW, _LABEL = 1120, 800, 28, 84, 320, 200


def markdown(record: Record) -> str:
    """Everything that a run has found, and what it has not."""
    sections = {
        "The goals": tables.goals(record, SERVING_GOALS),
        "Pictures, requests, memory": _serving(record),
        "A worker is killed under full load": _killed(record),
        "Three models, of which two fit": _turns(record),
        "Not measured": _absences(record),
        "What is measured": tables.words(MEASURES),
        "How the peers are run": tables.words({name: peer.settings for name, peer in PEERS.items()}),
    }
    picture = "![Pictures a second, requests, memory, a killed worker](models.svg)"
    title = "A model behind ours and behind model servers, measured in one run"
    return tables.page(title, _about(record), picture, sections)


def _about(record: Record) -> str:
    notes = (
        f"figures are medians. Half load is {record.about['half load']:g} requests a second. Servers, clients and "
        "workers share the cores. Only the ratios within one run count."
    )
    return tables.about(record.about, less="fewer rounds and pictures", where="", notes=notes)


def _absences(record: Record) -> str:
    lines = []
    for one in record.absences:
        what = ", ".join(part for part in (TITLES[one.contestant], one.figure, one.case) if part)
        lines.append(f"- {what}: {one.reason}")
    return "\n".join(lines)


def _any(record: Record, *figures: str) -> bool:
    return any(key.figure in figures for key in record.series)


def _serving(record: Record) -> str:
    if not _any(record, "pictures", "request", "memory", "first answer"):
        return ""
    rows = []
    for name in (*_SERVERS, BARE):
        request = record.get("request", name, "1")
        waits = [f"{request.median:,.1f}", f"{request.percentile(0.99):,.1f}"] if request else [NONE, NONE]
        rows.append(
            [
                TITLES[name],
                *(median(record, "pictures", name, case, 1) for case in WORKERS),
                *waits,
                median(record, "memory", name, "1"),
                median(record, "memory", name, THREE),
                median(record, "first answer", name, "1", 1),
            ]
        )
    head = ["", "pictures/s, 1 worker", "2 workers", "a request at half load, median, ms", "p99, ms"]
    return table([*head, "PSS, one model, MB", "three models", "start → first answer, s"], rows)


def _killed(record: Record) -> str:
    if not _any(record, "in flight"):
        return ""
    rows = [
        [TITLES[name], *(cell for case in WORKERS for cell in (_fate(record, name, case), _next(record, name, case)))]
        for name in _SERVERS
    ]
    head = ["", "1 worker: requests in flight", "next answer after, s", "2 workers: requests in flight"]
    return table([*head, "next answer after, s"], rows)


def _fate(record: Record, name: str, case: str) -> str:
    """Of all rounds together."""
    flight, lost, hung = (record.get(figure, name, case) for figure in ("in flight", "lost", "hung"))
    if not (flight and lost and hung):
        return NONE
    gone, waiting = sum(lost.values), sum(hung.values)
    words = [f"{gone:.0f} lost" if gone else "", f"{waiting:.0f} never answered" if waiting else ""]
    told = " and ".join(word for word in words if word)
    return f"**{told}** of {sum(flight.values):.0f}" if told else f"none lost of {sum(flight.values):.0f}"


def _next(record: Record, name: str, case: str) -> str:
    series = record.get("next answer", name, case)
    if series:
        return f"{series.median:,.2f}"
    reasons = [
        one.reason for one in record.absences if (one.figure, one.contestant, one.case) == ("next answer", name, case)
    ]
    return f"never: {reasons[0]}" if reasons else NONE


def _turns(record: Record) -> str:
    rows = []
    for case in (turns.ALL, turns.TWO):
        if record.get("turns", QUEUE.name, case):
            figures = ("turns", "loads", "failed", "killed")
            rows.append([case, *(median(record, figure, QUEUE.name, case) for figure in figures)])
    return (
        table(["", "pictures/s", "loads of a model", "jobs failed", "jobs whose worker was killed"], rows)
        if rows
        else ""
    )


@dataclass(frozen=True)
class _Panel:
    """Bars of one figure in one case, the best first; `less`: less is better."""

    title: str
    words: str
    figure: str
    case: str
    digits: int
    less: bool = False

    def bar(self, record: Record, name: str) -> Bar:
        series = record.get(self.figure, name, self.case)
        colour = "ours" if name in OURS else "peer"
        if series is None:
            never = self.figure == "next answer" and _next(record, name, self.case) != NONE
            return Bar(_short(name), None, "never" if never else "not measured", colour)
        words = f"{series.median:,.{self.digits}f}"
        return Bar(_short(name), series.median, words, colour, (min(series.values), series.highest))

    def draw(self, canvas: Canvas, box: Box, record: Record) -> None:
        plot = panels.head(canvas, box, self.title, f"{self.words}; {'less' if self.less else 'more'} is better")
        worst = math.inf if self.less else 0.0
        rows = [self.bar(record, name) for name, one in _SERVERS.items() if self.case in one.cases]
        rows.sort(key=lambda row: worst if row.value is None else row.value, reverse=not self.less)
        panels.bars(canvas, plot, rows, [], label=_LABEL)


_PICTURES = _Panel("Throughput", "pictures a second with 2 workers, saturated", "pictures", "2", 1)
_MEMORY = _Panel("Memory with three models", "MB, pages that are shared count once", "memory", THREE, 0, less=True)
_KILLED = _Panel("The only worker is killed", "seconds to the next answer", "next answer", "1", 2, less=True)


def picture(record: Record) -> str:
    """As SVG."""
    canvas = Canvas(_WIDTH, _HEIGHT, "job-supervisor and model servers: pictures a second, requests, memory, kills")
    panels.title(canvas, _MARGIN, "One model behind job-supervisor and behind model servers, in one run", record.about)
    column = (_WIDTH - 3 * _MARGIN) / 2
    right, low = 2 * _MARGIN + column, _TOP + _ROW + 34
    _PICTURES.draw(canvas, Box(_MARGIN, _TOP, column, _ROW), record)
    _MEMORY.draw(canvas, Box(_MARGIN, low, column, _ROW), record)
    _KILLED.draw(canvas, Box(right, low, column, _ROW), record)
    what = "with 1 worker, median and 99 %; less is better"
    plot = panels.head(canvas, Box(right, _TOP, column, _ROW), "A request at half load", what)
    rows = [_range(name, series) for name in _SERVERS if (series := record.get("request", name, "1"))]
    panels.ranges(canvas, plot, sorted(rows, key=lambda row: row.middle), "ms", label=_LABEL)
    return str(canvas)


def _range(name: str, series: Series) -> Range:
    middle, far = series.median, series.percentile(0.99)
    words = f"{middle:,.0f} / {far:,.0f} ms"
    return Range(_short(name), middle, far, words, "ours" if name in OURS else "peer")


def _short(name: str) -> str:
    return _SHORT.get(name, TITLES[name].partition(",")[0])
