"""`status` and `top`: everything at a glance, once or live."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from click.exceptions import Exit

from supervisor.cli import tables
from supervisor.cli.errors import wrong_usage
from supervisor.cli.options import Answer, Target, answering, on_target
from supervisor.cli.output import heading, line, show, table
from supervisor.cli.tables import span
from supervisor.domain.text import human_size

if TYPE_CHECKING:
    from supervisor.ops.views import MemoryView, Overview


@on_target
def top(target: Target) -> None:
    """Show everything live, with keys to control it.

    Pools, workers, types and their failures. ? lists the keys, q quits.
    """
    from supervisor.domain.errors import StoreBusy

    streams = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    if not streams or os.environ.get("TERM", "dumb") == "dumb":
        raise wrong_usage("top needs a terminal", "`supervisor status` or `status --json` prints the same once")
    engine = target.engine()
    # If the database cannot be used at the start, report it in a line with an exit code, as every other command does.
    with suppress(StoreBusy):
        engine.operations().close()
    from supervisor.cli.live import run

    gc.enable()  # the command line starts with it disabled
    raise Exit(run(engine))


@answering
def status(target: Target) -> Answer:
    """Show supervisors, pools, workers and types."""
    from supervisor.ops.status import gather

    engine = target.engine()
    with closing(engine.operations()) as operations:
        overview = gather(engine, operations)
    return Answer(overview.as_json(), show=lambda: _print(overview))


def _print(overview: Overview) -> None:
    line(overview.database)
    from supervisor.ops.views import by_gate

    gates = {"held": by_gate(overview.held)}
    counts = [f"{count} {state}{gates.get(state, '')}" for state, count in overview.jobs.items() if count]
    line(", ".join(counts) or "no jobs")
    hidden = tables.hidden(overview)
    _supervisors(overview, hidden)
    _section("Pools", tables.OF_POOLS, [*map(tables.of_pool, overview.pools)], wrap=True, hidden=hidden)
    for pool in overview.pools:
        if pool.threads:
            line(f"{pool.name}: threads of numerical libraries in a worker: {pool.threads}")
    _section("Workers", tables.OF_WORKERS, [*map(tables.of_worker, overview.workers)], hidden=hidden)
    _types(overview, hidden)
    _section("Schedules", tables.OF_SCHEDULES, tables.of_schedules(overview.schedules, overview.time))
    _findings(overview)


def _section(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    wrap: bool = False,
    hidden: Collection[str] = (),
) -> None:
    if rows:
        kept = [number for number, name in enumerate(columns) if name not in hidden]
        shown = [[row[number] for number in kept] for row in rows]
        show(heading(title), table([columns[number] for number in kept], shown, wrap=wrap))


def _supervisors(overview: Overview, hidden: Collection[str]) -> None:
    rows = [
        (s.host, span(s.lease_left), s.pid, s.state, span(overview.time - s.started_at), s.config)
        for s in overview.supervisors
    ]
    columns = ("host", "lease>", "pid>", "state", "up", "configuration")
    _section("Supervisors", columns, rows, wrap=True, hidden=hidden)
    if overview.supervisors:  # where nobody else is, it says nothing new that one has stopped
        gone = [
            (one.host, one.pid, f"{span(overview.time - one.at)} ago", "stopped" if one.stopped else "ended")
            for one in overview.gone
        ]
        _section("Hosts that left in the last 24 h", ("host", "pid>", "since>", "how"), gone)
    for supervisor in overview.supervisors:
        if supervisor.admin is not None and not supervisor.admin.problem:
            token = f", token in {file}" if (file := supervisor.admin.token_file) else ""
            line(f"admin process at {supervisor.admin.listen}{token}")
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


def _types(overview: Overview, hidden: Collection[str]) -> None:
    rows = []
    for view in sorted(overview.types, key=lambda view: -(view.mean_seconds or 0.0)):
        jobs, hour = view.jobs, view.last_hour
        waiting = f"{jobs.get('pending', 0)}" + tables.paused(view)
        counts = (waiting, jobs.get("held", 0), jobs.get("running", 0), jobs.get("done", 0), view.unsuccessful)
        times = (span(hour.mean_wait), span(view.mean_seconds), span(view.longest_seconds))
        rows.append((view.type, *counts, hour.done, view.failures_last_hour, *times))
    counted = ("pending>", "held>", "running>", "done>", "failed>", "done/h>", "errors/h>")
    columns = ("type", *counted, "wait>", "mean>", "longest")
    _section("Types, slowest first", columns, rows, hidden=hidden)
    for view in overview.types:
        if view.limits_shown:
            line(f"{view.type}: {view.limits_shown}")
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
