"""The table and the picture of a run on PostgreSQL."""

from __future__ import annotations

from bench import tables
from bench.drawing import panels
from bench.drawing.panels import Bar, Box, Range
from bench.drawing.svg import Canvas
from bench.goals import POSTGRES_GOALS
from bench.postgres.contestants import OURS, PEERS
from bench.postgres.measures import MEASURES, WORKERS
from bench.record import Record, Series
from bench.tables import NONE, median, table

_ALL = {OURS.name: OURS, **PEERS}
_WIDTH, _HEIGHT, _MARGIN, _TOP, _ROW = 1120, 660, 28, 84, 250


def markdown(record: Record) -> str:
    """Everything that a run has found, and what it has not."""
    sections = {
        "The goals": tables.goals(record, POSTGRES_GOALS),
        "Throughput: no-op jobs a second": _throughput(record),
        "Enqueueing, and an idle queue": _enqueue(record),
        "When things go wrong": _trouble(record),
        "Not measured": "\n".join(
            f"- {_title(one.contestant)}{f', {one.figure}' if one.figure else ''}: {one.reason}"
            for one in record.absences
        ),
        "What is measured": tables.words({name: one.about for name, one in MEASURES.items()}),
        "How the peers are run": tables.words({name: f"{peer.title}; {peer.settings}" for name, peer in PEERS.items()}),
    }
    title = "On PostgreSQL, ours and the peers, measured in one run"
    return tables.page(title, _about(record), "![Throughput](postgres.svg)", sections)


def picture(record: Record) -> str:
    """As SVG."""
    canvas = Canvas(_WIDTH, _HEIGHT, "job-supervisor and its peers on PostgreSQL: throughput, latency, held rows")
    about = record.about
    panels.title(canvas, _MARGIN, "job-supervisor and its peers on PostgreSQL, in one run", about)
    column = (_WIDTH - 3 * _MARGIN) / 2
    right, low = 2 * _MARGIN + column, _TOP + _ROW + 44
    words = "no-op jobs a second; more is better"
    _bars(canvas, Box(_MARGIN, _TOP, column, _ROW), record, "Throughput with 2 workers", words, "throughput", "2")
    words = f"the same at the end of {about['held']:g} s in which a transaction elsewhere is open"
    _bars(canvas, Box(right, _TOP, column, _ROW), record, "Dead rows are held", words, "held back, at the end", "2")
    _bars(canvas, Box(_MARGIN, low, column, _ROW), record, "Enqueueing", "a call and a commit a job", "enqueue", "")
    what = "from the call that enqueues to the handler’s first line: median and 99 %; less is better"
    plot = panels.head(canvas, Box(right, low, column, _ROW), "Latency of an idle queue, 2 workers", what)
    rows = [_range(name, series) for name in _ALL if (series := record.get("latency", name, "2"))]
    panels.ranges(canvas, plot, sorted(rows, key=lambda row: row.middle), "ms")
    return str(canvas)


def _bars(canvas: Canvas, box: Box, record: Record, title: str, words: str, figure: str, case: str) -> None:
    plot = panels.head(canvas, box, title, words)
    rows = []
    for name, one in _ALL.items():
        series = record.get(figure, name, case)
        colour = "ours" if one is OURS else "peer"
        if series:
            spread = (min(series.values), series.highest)
            rows.append(Bar(_short(one.title), series.median, f"{series.median:,.0f}", colour, spread))
        else:
            rows.append(Bar(_short(one.title), None, "not measured", colour))
    panels.bars(canvas, plot, sorted(rows, key=lambda row: -(row.value or 0)), [])


def _range(name: str, series: Series) -> Range:
    middle, far = series.median, series.percentile(0.99)
    words = f"{middle:,.3g} / {far:,.3g} ms"
    return Range(_short(_ALL[name].title), middle, far, words, "ours" if name == OURS.name else "peer")


def _short(title: str) -> str:
    return title.partition(",")[0]


def _title(name: str) -> str:
    return _ALL[name].title


def _about(record: Record) -> str:
    notes = (
        "figures are medians. The server, its clients and all workers share the cores. Only the ratios within one run "
        "count."
    )
    return tables.about(record.about, less="fewer rounds and jobs", where="", notes=notes)


def _throughput(record: Record) -> str:
    rows = [
        [one.title, *(median(record, "throughput", name, str(count)) for count in WORKERS), one.keeps]
        for name, one in _ALL.items()
    ]
    return table(["", "1 worker", *(f"{count} workers" for count in WORKERS[1:]), "a finished job"], rows)


def _enqueue(record: Record) -> str:
    rows = []
    for name, one in _ALL.items():
        series = record.get("latency", name, "2")
        waits = [f"{series.median:,.3g}", f"{series.percentile(0.99):,.3g}"] if series else [NONE, NONE]
        after = record.get("latency after the call", name, "2")
        waits.append(f"{after.median:,.3g}" if after else NONE)
        rows.append(
            [one.title, median(record, "enqueue", name), median(record, "enqueue, many", name), *waits],
        )
    head = ["", "one call, one commit, jobs/s", "a call for many, jobs/s", "enqueue → handler, median, ms", "p99, ms"]
    head.append("median from the call’s end, ms")
    return table(head, rows)


def _trouble(record: Record) -> str:
    rows = []
    for name, one in _ALL.items():
        back = record.get("back after", name, "2")
        rows.append(
            [
                one.title,
                median(record, "held back", name, "2"),
                median(record, "held back, at the end", name, "2"),
                f"{back.median:.2f}" if back else record.why_not("back after", name),
                one.fences,
                _late(record, name),
            ]
        )
    head = ["", f"jobs/s while a transaction is open for {record.about['held']:g} s", "in its last 5 s"]
    head += ["the server restarts: next job after, s", "a result is written if these match"]
    return table([*head, "a late one, while another worker has the job"], rows)


def _late(record: Record, name: str) -> str:
    fenced = record.get("fenced", name, "1")
    return ("refused" if min(fenced.values) else "**written**") if fenced else record.why_not("fenced", name)
