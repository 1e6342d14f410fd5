"""Pools, workers and types as rows, the most important first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from supervisor.cli.tables import NOTHING, activity, paused, span
from supervisor.domain.text import human_size
from supervisor.ops.views import Overview, PoolView, TypeView, WorkerView

Name = Literal["pools", "workers", "types"]
NAMES: tuple[Name, ...] = ("pools", "workers", "types")
_ORDER = {"busy": 0, "draining": 1, "starting": 2}  # of workers; others follow


# A name that ends in > is aligned to the right. "host" is shown if there are several.
COLUMNS: dict[Name, tuple[str, ...]] = {
    "pools": ("pool", "host", "size>", "due>", "oldest>", "rate>", "why"),
    "workers": ("worker", "host", "pid>", "state", "job>", "for>", "memory>", "doing"),
    "types": ("type", "pending>", "running>", "failed>", "errors/h>", "mean>", "latest failure"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """`key` identifies what the row shows. Keys act on its types, its pool (`size`: the wanted one) and its job."""

    key: str
    cells: tuple[object, ...]
    style: str = ""
    types: Sequence[str] = ()
    pool: str = ""
    size: int = 0
    job: int | None = None


Panes = Mapping[Name, Sequence[Row]]


def panes(overview: Overview, failures: Mapping[str, str]) -> Panes:
    """`failures` is the latest message by type."""
    pools = {_key(pool.name, pool): pool for pool in overview.pools}
    of_pools = sorted(pools.values(), key=lambda pool: (not pool.problem, not pool.paused, not pool.due))
    workers = sorted(overview.workers, key=_by_time)
    rows: dict[Name, list[Row]] = {
        "pools": [_pool(pool) for pool in of_pools],
        "workers": [_worker(worker, pools.get(_key(worker.pool, worker))) for worker in workers],
        "types": [_type(view, failures.get(view.type, "")) for view in sorted(overview.types, key=_by_trouble)],
    }
    # Each key once: two dead supervisors may have had the same pid.
    return {name: [*{row.key: row for row in of_pane}.values()] for name, of_pane in rows.items()}


def _key(name: str, one: PoolView | WorkerView) -> str:
    """Also that of its supervisor: on several hosts, these may have the same pid."""
    return f"{name}@{one.supervisor}@{one.host}"


def _pool(pool: PoolView) -> Row:
    size = f"{pool.size}/{pool.target}" + (f" +{pool.spares}" if pool.spares_wanted else "")
    rate = f"{pool.rate:.3g}/s"
    return Row(
        _key(pool.name, pool),
        (pool.name, pool.host, size, pool.due_shown, span(pool.oldest_age), rate, pool.remark),
        style="red" if pool.broken else "yellow" if pool.paused or pool.problem else "",
        types=pool.types,
        pool=pool.name,
        size=pool.target if pool.fixed is None else pool.fixed,
    )


def _worker(worker: WorkerView, pool: PoolView | None) -> Row:
    job = NOTHING if worker.job is None else str(worker.job)
    job += f" +{worker.running - 1}" if worker.running > 1 else ""
    memory = NOTHING if worker.memory is None else human_size(worker.memory)
    who = (worker.name, worker.host, worker.pid, worker.state)
    of_pool = Row("", ()) if pool is None else _pool(pool)
    return replace(
        of_pool,
        key=_key(worker.name, worker),
        cells=(*who, job, span(worker.running_for), memory, activity(worker)),
        style="dim" if worker.job is None else "",
        job=worker.job,
    )


def _type(view: TypeView, failure: str) -> Row:
    """Its last cell is what prevents its jobs from running, and the latest failure."""
    pending, running = view.jobs.get("pending", 0), view.jobs.get("running", 0)
    obstacle = paused(view).strip()
    if not (obstacle or view.handled) and pending:
        obstacle = "no pool takes it"
    why = "; ".join(filter(None, (obstacle, failure)))
    return Row(
        view.type,
        (view.type, pending, running, view.unsuccessful, view.failures_last_hour, span(view.mean_seconds), why),
        style="yellow" if obstacle.startswith("paused") else "red" if view.failures_last_hour else "",
        types=[view.type],
    )


def _by_time(worker: WorkerView) -> tuple[float, float, str, int]:
    """Busy workers first, those that have run longest at the top."""
    return _ORDER.get(worker.state, 9), -(worker.running_for or 0.0), worker.pool, len(worker.name)


def _by_trouble(view: TypeView) -> tuple[bool, ...]:
    return (
        not view.failures_last_hour,
        not view.unsuccessful,
        not view.jobs.get("running"),
        not view.jobs.get("pending"),
    )
