"""Pools, workers and types as rows: their cells, and which rows are the most important."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from supervisor.cli.tables import NOTHING, activity, paused, span
from supervisor.domain.text import MAX_CELL, clean, human_size
from supervisor.ops.views import Overview, PoolView, TypeView, WorkerView

Name = Literal["pools", "workers", "types"]
NAMES: tuple[Name, ...] = ("pools", "workers", "types")

# What a narrow screen leaves out, first what matters least.
SPARED: dict[Name, tuple[str, ...]] = {
    "pools": ("rate>", "oldest>", "host"),
    "workers": ("pid>", "memory>", "state", "for>", "host"),
    "types": ("mean>", "errors/h>", "running>", "failed>"),
}

_ORDER = {"busy": 0, "draining": 1, "starting": 2}  # of workers; others follow


@dataclass(frozen=True, slots=True)
class Row:
    """`key` identifies what the row shows. `interest` is higher for rows that should be seen first.

    `types` are those that keys act on in this row; `pool` and `job` likewise, if there is one. `home` is the host and
    the pid of its supervisor.
    """

    key: str
    cells: tuple[str, ...]
    interest: tuple[float, ...]
    style: str = ""
    pool: str = ""
    types: tuple[str, ...] = ()
    job: int | None = None
    home: tuple[str, int] = ("", 0)


@dataclass(frozen=True, slots=True)
class Pane:
    """Columns as `tables.table` takes them, and all rows in display order."""

    name: Name
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def row(self, key: str) -> Row | None:
        return next((row for row in self.rows if row.key == key), None)


def panes(overview: Overview, failures: Mapping[str, str]) -> dict[Name, Pane]:
    """`failures` is the latest message by type."""
    return {"pools": _pools(overview), "workers": _workers(overview), "types": _types(overview, failures)}


def most_interesting(rows: tuple[Row, ...], room: int, selected: str) -> tuple[Row, ...]:
    """At most `room` of the rows, in their order. The selected row is always among them."""
    if len(rows) <= room:
        return rows

    def rank(index: int) -> tuple[bool, tuple[float, ...], int]:
        return rows[index].key != selected, tuple(-part for part in rows[index].interest), index

    return tuple(rows[index] for index in sorted(sorted(range(len(rows)), key=rank)[: max(0, room)]))


def around(rows: tuple[Row, ...], room: int, selected: str) -> tuple[Row, ...]:
    """At most `room` of the rows, with the selected one in the middle."""
    at = next((number for number, row in enumerate(rows) if row.key == selected), 0)
    start = max(0, min(at - max(0, room - 1) // 2, len(rows) - room))
    return rows[start : start + max(0, room)]


def _pools(overview: Overview) -> Pane:
    several = overview.several_hosts
    columns = ("pool", *_host("host", several), "size>", "due>", "oldest>", "rate>", "why")
    return Pane("pools", columns, _unique(_pool(pool, several) for pool in overview.pools))


def _host(cell: str, several: bool) -> tuple[str, ...]:
    """A cell that says nothing on a single host."""
    return (cell,) if several else ()


def _key(view: PoolView | WorkerView) -> str:
    return f"{view.name}@{view.supervisor}@{view.host}"


def _pool(pool: PoolView, several: bool) -> Row:
    return Row(
        key=_key(pool),
        cells=(
            pool.name,
            *_host(pool.host, several),
            f"{pool.size}/{pool.target}" + (f" +{pool.spares}" if pool.spares_wanted else ""),
            pool.due_shown,
            span(pool.oldest_age),
            f"{pool.rate:.3g}/s",
            pool.remark,
        ),
        interest=(bool(pool.problem), bool(pool.paused), pool.oldest_age or 0.0, pool.due, pool.rate),
        style="red" if pool.broken else "yellow" if pool.paused or pool.problem else "",
        pool=pool.name,
        types=tuple(pool.types),
        home=pool.home,
    )


def _workers(overview: Overview) -> Pane:
    several = overview.several_hosts
    types = {(pool.name, *pool.home): tuple(pool.types) for pool in overview.pools}
    columns = ("worker", *_host("host", several), "pid>", "state", "job>", "for>", "memory>", "doing")
    ordered = sorted(overview.workers, key=_by_time)
    rows = [_worker(worker, types.get((worker.pool, *worker.home), ()), several) for worker in ordered]
    return Pane("workers", columns, _unique(rows))


def _by_time(worker: WorkerView) -> tuple[float, float, str, int]:
    """Busy workers first, those that have run longest at the top."""
    return _ORDER.get(worker.state, 9), -(worker.running_for or 0.0), worker.pool, len(worker.name)


def _worker(worker: WorkerView, types: tuple[str, ...], several: bool) -> Row:
    job = NOTHING if worker.job is None else str(worker.job)
    job += f" +{worker.running - 1}" if worker.running > 1 else ""
    memory = NOTHING if worker.memory is None else human_size(worker.memory)
    busy = worker.job is not None
    return Row(
        key=_key(worker),
        cells=(
            worker.name,
            *_host(worker.host, several),
            str(worker.pid),
            worker.state,
            job,
            span(worker.running_for),
            memory,
            activity(worker),
        ),
        interest=(busy, worker.state not in ("idle", "busy"), worker.running_for or 0.0, worker.memory or 0),
        style="" if busy else "dim",
        pool=worker.pool,
        types=types,
        job=worker.job,
        home=worker.home,
    )


def _types(overview: Overview, failures: Mapping[str, str]) -> Pane:
    columns = ("type", "pending>", "running>", "failed>", "errors/h>", "mean>", "latest failure")
    return Pane("types", columns, _unique([_type(view, failures.get(view.type, "")) for view in overview.types]))


def _type(view: TypeView, failure: str) -> Row:
    failed = view.unsuccessful
    pending, running = view.jobs.get("pending", 0), view.jobs.get("running", 0)
    counts = (pending, running, failed, view.failures_last_hour)
    return Row(
        key=view.type,
        cells=(view.type, *map(str, counts), span(view.mean_seconds), _details(view, failure)),
        interest=(view.failures_last_hour > 0, failed > 0, running, pending, failed),
        style="yellow" if view.paused or view.paused_on else "red" if view.failures_last_hour else "",
        types=(view.type,),
    )


def _details(view: TypeView, failure: str) -> str:
    """What prevents its jobs from running, and the latest failure."""
    obstacle = paused(view).strip()
    if not (obstacle or view.handled) and view.jobs.get("pending"):
        obstacle = "no pool takes it"
    return "; ".join(filter(None, (obstacle, failure)))


def _unique(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Rows with clean cells, each key once: two dead supervisors may have had the same pid."""
    found: dict[str, Row] = {}
    for row in rows:
        if all(math.isfinite(part) for part in row.interest):
            found.setdefault(row.key, replace(row, cells=tuple(clean(cell, " ", limit=MAX_CELL) for cell in row.cells)))
    return tuple(found.values())
