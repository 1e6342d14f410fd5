"""`status`: everything at a glance."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from supervisor.cli import tables
from supervisor.cli.options import Target, as_json, on_target
from supervisor.cli.output import document, heading, line, show, table
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
@as_json
def status(target: Target, as_json: bool) -> None:
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
    line(overview.database)
    line(", ".join(f"{count} {state}" for state, count in overview.jobs.items() if count) or "no jobs")
    hidden = set() if any(worker.device is not None for worker in overview.workers) else {"device"}
    if not (overview.several_hosts or any(one.lease_left is not None for one in overview.supervisors)):
        hidden |= {"host", "lease>"}  # there is no other host, and there may be none
    _supervisors(overview, hidden)
    _pools(overview, hidden)
    _workers(overview, hidden)
    _types(overview)
    _section("Schedules", tables.OF_SCHEDULES, tables.of_schedules(overview.schedules, overview.time))
    _findings(overview)


def _section(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *legend: str,
    wrap: bool = False,
    hidden: Collection[str] = (),
) -> None:
    if rows:
        kept = [number for number, name in enumerate(columns) if name not in hidden]
        shown = [[row[number] for number in kept] for row in rows]
        show(heading(title), table([columns[number] for number in kept], shown, wrap=wrap))
        for explained in legend:
            line(explained)


def _supervisors(overview: Overview, hidden: Collection[str]) -> None:
    rows = [
        (s.host, span(s.lease_left), s.pid, _state(s), span(overview.time - s.started_at), s.config)
        for s in overview.supervisors
    ]
    columns = ("host", "lease>", "pid>", "state", "up", "configuration")
    _section("Supervisors", columns, rows, wrap=True, hidden=hidden)
    if overview.supervisors:  # where nobody else is, it says nothing new that one has stopped
        gone = [
            (one.host, one.pid, f"{span(overview.time - one.at)} ago", "stopped" if one.stopped else "ended")
            for one in overview.gone
        ]
        _section("Hosts gone within a day", ("host", "pid>", "since>", "how"), gone)
    for supervisor in overview.supervisors:
        if supervisor.admin is not None and not supervisor.admin.problem:
            line(f"admin process at {supervisor.admin.listen}")
        for told in () if supervisor.memory is None else memory_lines(supervisor.memory):
            line(told)


def _state(supervisor: SupervisorView) -> str:
    if supervisor.alive and supervisor.stopping:
        return "stopping"
    return "drained" if supervisor.alive and supervisor.drained else _STATES[supervisor.alive]


def memory_lines(memory: MemoryView) -> Iterator[str]:
    """The budgets of the configuration, and what uses them."""
    if memory.stated:
        used = sorted(memory.pools.items(), key=lambda pair: -pair[1])
        shares = [f"{name} {human_size(size)}" for name, size in [*used, ("templates", memory.templates)] if size]
        users = f": {', '.join(shares)}" if shares else ""
        yield f"memory: {human_size(memory.used)} of {human_size(memory.budget)}{users}"
    for device in memory.devices:
        yield f"memory of device {device.name}: {human_size(device.used)} of {human_size(device.budget)}"


def _pools(overview: Overview, hidden: Collection[str]) -> None:
    rows = []
    for pool in overview.pools:
        size = f"{pool.size} of {pool.target}" + (f" ({pool.leaving} leaving)" if pool.leaving else "")
        size += f", {pool.spares_shown}" if pool.spares_shown else ""
        rate = f"{pool.rate:g}/s"
        rows.append((pool.name, pool.host, size, pool.due_shown, span(pool.oldest_age), rate, pool.remark))
    columns = ("pool", "host", "size", "due>", "oldest>", "rate>", "why")
    _section("Pools", columns, rows, *_OF_POOLS, wrap=True, hidden=hidden)
    for pool in overview.pools:
        if pool.threads:
            line(f"{pool.name}: threads of numerical libraries in a worker: {pool.threads}")


def _workers(overview: Overview, hidden: Collection[str]) -> None:
    rows = []
    for worker in overview.workers:
        job = "" if worker.job is None else f"job {worker.job} for {span(worker.running_for)}"
        job += f", and {worker.running - 1} more" if worker.running > 1 else ""
        doing = ", ".join(filter(None, (job, activity(worker)))) or NOTHING
        memory = NOTHING if worker.memory is None else human_size(worker.memory)
        who = (worker.name, worker.host, worker.pid, worker.state, worker.device or NOTHING)
        rows.append((*who, memory, span(worker.beat_age), worker.done, doing))
    columns = ("worker", "host", "pid>", "state", "device", "memory>", "beat>", "runs>", "doing")
    _section("Workers", columns, rows, *_OF_WORKERS, hidden=hidden)


def _types(overview: Overview) -> None:
    rows = []
    for view in sorted(overview.types, key=lambda view: -(view.mean_seconds or 0.0)):
        jobs, hour = view.jobs, view.last_hour
        waiting = f"{jobs.get('pending', 0)}" + tables.paused(view)
        counts = (waiting, jobs.get("running", 0), jobs.get("done", 0), view.unsuccessful)
        times = (span(hour.mean_wait), span(view.mean_seconds), span(view.longest_seconds))
        rows.append((view.type, *counts, hour.done, view.failures_last_hour, *times))
    columns = ["type", "pending>", "running>", "done>", "failed>", "done/h>", "errors/h>", "wait>", "mean>", "longest"]
    _section("Types, slowest first", columns, rows, *_COUNTED, *(_COUNTED_LATER if overview.several_hosts else ()))
    if overview.more_types:
        line(f"and {overview.more_types} more types")


def _findings(overview: Overview) -> None:
    from supervisor.ops.diagnosis import diagnose

    found = diagnose(overview)
    if found:
        show(heading("What is wrong or unusual"))
    for finding in found:
        line(f"{finding.level}: {finding.fact}")
        line(f"→ {finding.advice}")
