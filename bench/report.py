"""The tables of a run, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from bench import floor, ours, tables
from bench.goals import GOALS, claim_growth
from bench.measurements import MEASUREMENTS, claim_cost, enqueue, latency, model_memory, throughput, warm_start
from bench.names import STORES, TITLES
from bench.peers import PEERS
from bench.record import Record, Series
from bench.tables import NONE, table

_ALL = (ours.AUTO.name, ours.ONE.name, *PEERS)
_BEFORE, _AFTER = model_memory.BEFORE, model_memory.AFTER
_MODELS = (
    ("nsfw scores: a bare loop, 1 process", "images", "floor", "1"),
    ("nsfw scores: the queue, 1 worker", "images", "ours", "1"),
    ("nsfw scores: bare loops, 2 processes", "images", "floor", "2"),
    ("nsfw scores: the queue, 2 workers", "images", "ours", "2"),
    (f"4 workers and their template, three models loaded {_BEFORE}: PSS", "model memory", "ours", _BEFORE),
    (f"4 workers and their template, three models loaded {_AFTER}: PSS", "model memory", "ours", _AFTER),
    (f"the workers alone, loaded {_BEFORE}: PSS", "worker memory", "ours", _BEFORE),
    (f"the workers alone, loaded {_AFTER}: PSS", "worker memory", "ours", _AFTER),
    (f"such a worker killed → its replacement ready, loaded {_BEFORE}", "replaced", "ours", _BEFORE),
    (f"such a worker killed → its replacement ready, loaded {_AFTER}", "replaced", "ours", _AFTER),
    ("a bare process of that size killed → a bare fork of its image has begun", "replaced", "floor", model_memory.BARE),
)


def markdown(record: Record) -> str:
    """Everything that a run has found, and what it has not."""
    sections = {
        "The goals": tables.goals(record, GOALS),
        "Throughput: no-op jobs a second": _throughput(record),
        "Enqueueing: jobs a second": _enqueue(record),
        "An idle queue with 4 workers": _idle(record),
        "Ours, more closely": _more(record),
        "Not measured": _absences(record),
        "What is measured": tables.words({name: one.__doc__ for name, one in MEASUREMENTS.items()}),
        "How the peers are run, with their fastest documented settings": tables.words(
            {name: peer.settings for name, peer in PEERS.items()}
        ),
    }
    picture = "![Throughput, latency and the cost of a claim](overview.svg)"
    return tables.page("Ours and the peers, measured in one run", _about(record), picture, sections)


def _about(record: Record) -> str:
    notes = (
        "figures are medians, ratios those of the rounds. Machines differ and drift: only the ratios within one run "
        "count."
    )
    where = f"{record.about['file system']}, "
    return tables.about(record.about, less="fewer rounds, jobs and cases", where=where, notes=notes)


def _throughput(record: Record) -> str:
    if not _any(record, "throughput"):
        return ""
    cases = [str(workers) for workers in throughput.WORKERS]
    rows = []
    for name in _ALL:
        values = _values(record, name, [record.get("throughput", name, case) for case in cases])
        keeps = PEERS[name].keeps if name in PEERS else "yes, and it runs again at once"
        rows.append([TITLES[name] + _deaths(record, name, cases), STORES.get(name, "SQLite"), *values, keeps])
    for name in floor.LOOPS:
        rows.append([TITLES[name], "SQLite", _median(record.get("throughput", name, "1")), "", "", "", ""])
    head = ["", "on", "1 worker", *(f"{case} workers" for case in cases[1:]), "keeps a job whose worker is killed?"]
    return table(head, rows)


def _deaths(record: Record, name: str, cases: Iterable[str]) -> str:
    """Workers that gave up while they were measured."""
    found = [(case, record.get("dead workers", name, case)) for case in cases]
    dead = [f"{max(series.values):.0f} of {case}" for case, series in found if series and any(series.values)]
    return f" (workers that died meanwhile: {', '.join(dead)})" if dead else ""


def _enqueue(record: Record) -> str:
    if not _any(record, "enqueue"):
        return ""
    cases = [enqueue.ONE, enqueue.SYNCED, enqueue.OWN, enqueue.MANY]
    titles = TITLES | {"floor-1": "bare INSERT"}
    rows = [
        [titles[name], *_values(record, name, [record.get("enqueue", name, case) for case in cases])]
        for name in ("ours", *PEERS, "floor-1")
    ]
    return table(["", *cases], rows)


def _idle(record: Record) -> str:
    if not _any(record, "latency"):
        return ""
    rows = []
    for name, figure, words in [
        ("ours", "latency", "job-supervisor, NORMAL"),
        ("ours", "latency of an INSERT", "job-supervisor, an INSERT in SQL, NORMAL"),
        ("ours", "latency, synced", "job-supervisor, FULL (synced)"),
        *((name, "latency", TITLES[name]) for name in PEERS),
    ]:
        series = record.get(figure, name, "4")
        after = record.get("latency after the call", name, "4") if figure == "latency" else None
        cost = [record.get(kind, name, "4") for kind in ("idle CPU", "idle memory")]
        cells = _values(record, name, [series, after, *cost])
        if series:
            late = [_number(value) for value in (series.percentile(0.99), series.highest)]
            rows.append([words, cells[0], *late, *cells[1:], str(len(series.values))])
        else:
            rows.append([words, *cells, "", "", ""])
    head = ["", "median, ms", "p99, ms", "longest, ms", "median from the call’s end, ms"]
    return table([*head, "idle CPU, % of a core", "memory (USS), MB", "jobs"], rows)


def _more(record: Record) -> str:
    rows = []
    for title, series in _closer(record):
        if series:
            values = (series.median, series.percentile(0.95), series.percentile(0.99), series.highest)
            rows.append([title, series.unit, *(_number(value) for value in values), str(len(series.values))])
    parts = [table(["", "unit", "median", "p95", "p99", "highest", "values"], rows) if rows else ""]
    parts.append(_claims(record))
    return "\n\n".join(part for part in parts if part)


def _closer(record: Record) -> list[tuple[str, Series | None]]:
    waits = [
        (
            f"the longest claim wait of 12 saturated workers in a round: {TITLES[name]}",
            record.get("claim wait", name, "12"),
        )
        for name in _ALL
    ]
    inserts = [
        (
            f"a foreign INSERT beside {workers} saturated workers: {TITLES[name]}",
            record.get("foreign INSERT", name, workers),
        )
        for workers in ("2", "12")
        for name in (ours.AUTO.name, ours.ONE.name)
    ]
    return [
        *((f"the floor of a wake-up, {case}", record.get("wake-up floor", "floor", case)) for case in latency.FLOORS),
        *waits,
        *inserts,
        ("worker killed → its job runs again", record.get("rerun", "ours", "2")),
        ("worker ready, handler imports onnxruntime: forked warm", record.get("ready", "ours", warm_start.FORK)),
        ("the same in a fresh interpreter (spawn)", record.get("ready", "ours", warm_start.SPAWN)),
        ("a bare fork of such an image, to its first line", record.get("ready", "floor", warm_start.BARE)),
        *((title, record.get(*key)) for title, *key in _MODELS),
        ("10,000 jobs at once: until all 8 workers are at work", record.get("full size", "ours", "8")),
    ]


def _claims(record: Record) -> str:
    sizes = [rows for rows in claim_cost.SIZES if record.get("claim", "ours", f"finished: {rows}")]
    if not sizes:
        return ""
    rows = []
    for kind in claim_cost.KINDS:
        values = [_median(record.get("claim", "ours", f"{kind}: {size}")) for size in sizes]
        growth = claim_growth(record, kind)
        rows.append([kind, *values, f"{growth:.2f}×" if growth else NONE])
    return table(["a claim in µs beside so many rows …", *(f"{size:,}" for size in sizes), "growth"], rows)


def _absences(record: Record) -> str:
    lines = []
    for absence in record.absences:
        where = f" ({absence.figure}, {absence.case})" if absence.figure else ""
        lines.append(
            f"- {TITLES.get(absence.contestant, absence.contestant)}{where}: {' '.join(absence.reason.split())}"
        )
    return "\n".join(lines)


def _any(record: Record, figure: str) -> bool:
    return any(key.figure == figure for key in record.series)


def _values(record: Record, name: str, series: list[Series | None]) -> list[str]:
    """The medians; of a contestant that could not be had at all, why."""
    for absence in record.absences:
        if absence.contestant == name and not absence.figure:
            return [f"not measured: {absence.reason}", *("" for _ in series[1:])]
    return [_median(one) for one in series]


def _median(series: Series | None) -> str:
    return NONE if series is None else _number(series.median)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
