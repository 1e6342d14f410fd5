"""Text, times and columns for people. Any value shown here may come from a row that another program wrote."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from supervisor.cli.output import compact, heading, show, table
from supervisor.domain.text import clean, counted, human, human_size, utc

if TYPE_CHECKING:
    from supervisor.domain.job import Job, Run
    from supervisor.ops.job_details import Limits, Trial
    from supervisor.ops.views import Overview, PoolView, ScheduleView, TypeView, WorkerView
    from supervisor.store.base import BatchView

NOTHING = "–"


def when(value: object) -> str:
    """A stored time in UTC, as in the logs of runs. Other programs may have stored any value."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return utc(value)
    return NOTHING if value is None else clean(value)


def span(value: float | None) -> str:
    return NOTHING if value is None or not math.isfinite(value) else human(max(0.0, value))


def percent(value: float | None) -> str:
    return NOTHING if value is None or not 0 <= value <= 1 else f"{100 * value:.0f}%"


def activity(worker: WorkerView) -> str:
    """What a worker does, beside its job."""
    if worker.progress is not None:
        return f"{percent(worker.progress)} {worker.text}".rstrip()
    return worker.text or worker.leaving_shown


def paused(view: TypeView) -> str:
    """Whether it is, after a space; empty if it is not."""
    return " paused" if view.paused else ""


def hidden(overview: Overview) -> set[str]:
    """The columns that would say nothing: the host where there is no other, the device where no worker has one, and so
    on.
    """
    found = set() if overview.jobs.get("held") else {"held>"}
    if not any(worker.device is not None for worker in overview.workers):
        found.add("device")
    if not (overview.several_hosts or any(one.lease_left is not None for one in overview.supervisors)):
        found |= {"host", "lease>"}
    return found


OF_POOLS = ("pool", "host", "size", "due>", "oldest>", "rate>", "why")


def of_pool(view: PoolView) -> tuple[object, ...]:
    """A row. Its size is workers, of those wanted."""
    leaving = f", {view.leaving} leaving" if view.leaving else ""
    size = f"{view.size}/{view.target}{leaving}" + (f", {view.spares_shown}" if view.spares_shown else "")
    return (view.name, view.host, size, view.due_shown, span(view.oldest_age), f"{view.rate:.3g}/s", view.remark)


OF_WORKERS = ("worker", "host", "pid>", "state", "device", "job>", "for>", "memory>", "doing")


def of_worker(view: WorkerView) -> tuple[object, ...]:
    """A row."""
    job = NOTHING if view.job is None else str(view.job)
    job += f" +{view.running - 1}" if view.running > 1 else ""
    memory = NOTHING if view.memory is None else human_size(view.memory)
    who = (view.name, view.host, view.pid, view.state, view.device or NOTHING)
    return (*who, job, span(view.running_for), memory, activity(view))


OF_SCHEDULES = ("schedule", "next", "last", "job>", "from")


def of_schedules(views: Iterable[ScheduleView], now: float) -> list[tuple[object, ...]]:
    """A row each."""
    rows: list[tuple[object, ...]] = []
    for view in views:
        coming = "no supervisor fires it" if view.unfired else f"in {span(view.next_in)}"
        last = NOTHING if view.last_at is None else f"{span(max(0.0, now - view.last_at))} ago"
        made = "run time" if view.run_time else "file"
        coming = "paused" if view.paused_at is not None else coming
        rows.append((view.name, coming, last, view.last_job or NOTHING, made))
    return rows


def jobs(found: Iterable[Job], now: float) -> None:
    """Print a list of jobs, one line each."""
    rows = []
    for job in found:
        tried = f"{job.attempts}" + (f", {counted(job.crashes, 'crash', 'crashes')}" if job.crashes else "")
        age = span(now - job.created_at) if isinstance(job.created_at, (int, float)) else NOTHING
        rows.append((job.id, job.type, job.status, tried, age, _details(job, now)))
    show(table(("id>", "type", "status", "attempts>", "age>", "details"), rows))


def _details(job: Job, now: float) -> str:
    """The most useful fact about a job in this state."""
    if job.status == "done":
        return NOTHING if job.result is None else compact(job.result)
    words = []
    if job.status in ("pending", "held") and job.scheduled_at > now:
        words.append(f"due in {span(job.scheduled_at - now)}")
    if job.status == "running":
        since = None if job.started_at is None else now - job.started_at
        words.append("stopping" if job.cancel_requested_at else f"for {span(since)}")
    if job.last_error:
        error = clean(job.last_error, " ")
        words.append(f"previous attempt: {error}" if job.status == "running" else error)
    return "; ".join(words) or compact(job.payload)


def job(
    found: Job,
    now: float,
    tried: Sequence[Trial],
    who: str | None,
    waits: str,
    limits: list[Limits],
    after: Sequence[int],
) -> None:
    """Print one job with everything that is known about it: its worker, why a pending one waits, its limits in the
    pools that take it, the jobs before it.
    """
    from supervisor.ops.job_details import in_words

    most = {each.retry.max_attempts for each in limits} | ({found.max_attempts} - {None})
    fields: list[tuple[str, object]] = [
        ("id", found.id),
        ("type", found.type),
        ("status", found.status),
        ("waits", waits),
        ("gate", found.hold if found.status == "held" and found.hold else ""),
        ("after", ", ".join(map(str, after))),
        ("batch", found.batch or ""),
        ("priority", found.priority),
        ("requires", found.requires or NOTHING),
        ("attempts", _of(found.attempts, most)),
        ("limits", in_words(limits)),
        ("crashes", _of(found.crashes, {*(each.max_crashes for each in limits if found.crashes)})),
        ("unique key", NOTHING if found.unique_key is None else found.unique_key),
        ("concurrency key", found.concurrency_key or ""),
        ("fair key", found.fair_key or ""),
        ("progress", f"{percent(found.progress)} {found.progress_text or ''}".rstrip()),
        ("payload", compact(found.payload)),
        ("result", NOTHING if found.result is None else compact(found.result)),
        ("meta", "" if found.meta is None else compact(found.meta)),
        ("last error", found.last_error or ""),
        ("claimed by", f"{who or found.locked_by} (token {found.claim_token})" if found.locked_by else ""),
        ("lock expires", when(found.lock_expires_at) if found.locked_by else ""),
    ]
    show(
        table(("field", "value"), [field for field in fields if field[1] != ""], wrap=True),
        heading("Timeline"),
        table(("time", "after>", "event"), _timeline(found, tried, now), wrap=True),
    )


def _of(count: int, most: set[int | None]) -> str:
    """With the limit, if it is known."""
    return f"{count} of {most.pop()}" if len(most) == 1 else str(count)


def _timeline(found: Job, tried: Sequence[Trial], now: float) -> list[tuple[str, str, str]]:
    from supervisor.ops.job_details import steps

    rows, before = [], None
    for step in steps(found, tried):
        rows.append((when(step.at), NOTHING if before is None else f"+{span(step.at - before)}", step.what))
        before = step.at
    if found.status == "running" and found.started_at is not None:
        rows.append((when(now), f"+{span(now - found.started_at)}", "still running"))
    return rows


def batches(found: Iterable[BatchView], now: float) -> None:
    """Print some batches, one line each."""
    rows = []
    for one in found:
        rows.append((one.id, one.state, one.waiting, one.done, one.failed, span(now - one.created_at), _callback(one)))
    show(table(("batch>", "state", "waiting>", "done>", "failed>", "age>", "then"), rows))


def _callback(batch: BatchView) -> str:
    return (batch.on_done or NOTHING) + (f" (job {batch.callback})" if batch.callback else "")


def runs(found: Sequence[Run]) -> None:
    """Print what each run of a job used. Prints nothing for a job without runs."""
    rows = []
    for run in found:
        peak = NOTHING if run.peak_memory is None else human_size(run.peak_memory)
        who = (run.attempt, run.worker or NOTHING, when(run.started_at))
        rows.append((*who, span(run.duration), span(run.cpu_time), peak, run.outcome))
    if rows:
        columns = ("attempt>", "worker", "started", "took>", "cpu>", "peak memory>", "outcome")
        show(heading("Runs"), table(columns, rows))
