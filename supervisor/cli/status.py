"""`status`: everything at a glance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from supervisor.cli import tables
from supervisor.cli.columns import heading, table
from supervisor.cli.options import AsJson, Target, on_target
from supervisor.cli.output import document, line, show
from supervisor.cli.tables import NOTHING, activity, span
from supervisor.domain.text import human_size

if TYPE_CHECKING:
    from supervisor.ops.views import MemoryView, Overview, SupervisorView

_OF_POOLS = (
    "size: workers, of those wanted; due: jobs that could start; oldest: its wait",
    "rate: runs that end, a second; why: what the supervisor saw up to 1s before",
)
_OF_WORKERS = ("beat: since its last heartbeat; runs: since it was started",)
_COUNTED = (
    "done, failed (with quarantined): jobs in the table",
    "done/h, errors/h, wait: runs of the last hour",
    "mean, longest: of the most recent jobs that are done",
)
_COUNTED_LATER = ("done/h, wait: of other hosts up to the last whole minute",)
_STATES = {True: "running", False: "dead", None: "unknown"}


@on_target
def status(target: Target, as_json: AsJson = False) -> None:
    """Show supervisors, pools, workers and types."""
    from supervisor.ops.status import gather

    engine = target.engine()
    with closing(engine.operations()) as operations:
        overview = gather(engine, operations)
    if as_json:
        document(overview.as_json())
    else:
        _print(overview)


def _print(overview: Overview) -> None:
    counts = ", ".join(f"{count} {state}" for state, count in overview.jobs.items() if count)
    line(overview.database)
    line(counts or "no jobs")
    _supervisors(overview)
    _pools(overview)
    _workers(overview)
    _types(overview)
    _schedules(overview)
    _findings(overview)


def _supervisors(overview: Overview) -> None:
    several = _several(overview)
    rows = []
    for s in overview.supervisors:
        host = (s.host, NOTHING if s.lease_left is None else span(max(0.0, s.lease_left))) if several else ()
        rows.append((*host, s.pid, _state(s), span(overview.time - s.started_at), s.config))
    hosts = ("host", "lease>") if several else ()
    _section("Supervisors", (*hosts, "pid>", "state", "up", "configuration"), rows, wrap=True)
    _gone(overview)
    for supervisor in overview.supervisors:
        if supervisor.admin is not None and not supervisor.admin.problem:
            line(f"admin process at {supervisor.admin.listen}")
        for told in () if supervisor.memory is None else memory_lines(supervisor.memory):
            line(told)


def memory_lines(memory: MemoryView) -> Iterator[str]:
    """The budgets of the configuration, and what uses them."""
    if memory.stated:
        used = sorted(memory.pools.items(), key=lambda pair: -pair[1])
        shares = [f"{name} {human_size(size)}" for name, size in [*used, ("templates", memory.templates)] if size]
        users = f": {', '.join(shares)}" if shares else ""
        yield f"memory: {human_size(memory.used)} of {human_size(memory.budget)}{users}"
    for device in memory.devices:
        yield f"memory of device {device.name}: {human_size(device.used)} of {human_size(device.budget)}"


def _gone(overview: Overview) -> None:
    """Where nobody else is, it says nothing new that one supervisor has stopped."""
    if not overview.supervisors:
        return
    rows = [
        (one.host, one.pid, f"{span(max(0.0, overview.time - one.at))} ago", "stopped" if one.stopped else "ended")
        for one in overview.gone
    ]
    _section("Hosts gone within a day", ("host", "pid>", "since>", "how"), rows)


def _several(overview: Overview) -> bool:
    """Whether there are, or may be, several hosts."""
    return overview.several_hosts or any(supervisor.lease_left is not None for supervisor in overview.supervisors)


def _state(supervisor: SupervisorView) -> str:
    if supervisor.alive and supervisor.stopping:
        return "stopping"
    return "drained" if supervisor.alive and supervisor.drained else _STATES[supervisor.alive]


def _findings(overview: Overview) -> None:
    from supervisor.ops.diagnosis import diagnose

    found = diagnose(overview)
    if found:
        show(heading("What is wrong or unusual"))
    for finding in found:
        line(f"{finding.level}: {finding.fact}")
        line(f"→ {finding.advice}")


def _section(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    wrap: bool = False,
    legend: Sequence[str] = (),
) -> None:
    if not rows:
        return
    show(heading(title), table(columns, rows, wrap=wrap))
    for explained in legend:
        line(explained)


def _pools(overview: Overview) -> None:
    rows, several = [], _several(overview)
    for pool in overview.pools:
        size = f"{pool.size} of {pool.target}" + (f" ({pool.leaving} leaving)" if pool.leaving else "")
        size += f", {pool.spares_shown}" if pool.spares_shown else ""
        host = (pool.host,) if several else ()
        rows.append((pool.name, *host, size, pool.due_shown, span(pool.oldest_age), f"{pool.rate:g}/s", pool.remark))
    host = ("host",) if several else ()
    _section("Pools", ("pool", *host, "size", "due>", "oldest>", "rate>", "why"), rows, wrap=True, legend=_OF_POOLS)
    for pool in overview.pools:
        if pool.threads:
            line(f"{pool.name}: threads of numerical libraries in a worker: {pool.threads}")


def _workers(overview: Overview) -> None:
    rows, several = [], _several(overview)
    devices = any(worker.device is not None for worker in overview.workers)
    for worker in overview.workers:
        job = "" if worker.job is None else f"job {worker.job} for {span(worker.running_for)}"
        job += f", and {worker.running - 1} more" if worker.running > 1 else ""
        doing = ", ".join(filter(None, (job, activity(worker)))) or NOTHING
        memory = NOTHING if worker.memory is None else human_size(worker.memory)
        device = (worker.device or NOTHING,) if devices else ()
        who = (worker.name, *((worker.host,) if several else ()), worker.pid)
        rows.append((*who, worker.state, *device, memory, span(worker.beat_age), worker.done, doing))
    device, host = ("device",) if devices else (), ("host",) if several else ()
    columns = ("worker", *host, "pid>", "state", *device, "memory>", "beat>", "runs>", "doing")
    _section("Workers", columns, rows, legend=_OF_WORKERS)


def _types(overview: Overview) -> None:
    rows = []
    for view in sorted(overview.types, key=lambda view: -(view.mean_seconds or 0.0)):
        jobs = view.jobs
        waiting = f"{jobs.get('pending', 0)}" + tables.paused(view)
        rows.append(
            (
                view.type,
                waiting,
                jobs.get("running", 0),
                jobs.get("done", 0),
                view.unsuccessful,
                view.last_hour.done,
                view.failures_last_hour,
                span(view.last_hour.mean_wait),
                span(view.mean_seconds),
                span(view.longest_seconds),
            )
        )
    columns = ["type", "pending>", "running>", "done>", "failed>", "done/h>", "errors/h>", "wait>", "mean>", "longest"]
    legend = _COUNTED + (_COUNTED_LATER if overview.several_hosts else ())
    _section("Types, slowest first", columns, rows, legend=legend)
    if overview.more_types:
        line(f"and {overview.more_types} more types")


def _schedules(overview: Overview) -> None:
    _section("Schedules", tables.OF_SCHEDULES, tables.of_schedules(overview.schedules, overview.time))
