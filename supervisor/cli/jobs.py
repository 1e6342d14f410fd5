"""`jobs`: list, show and change jobs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.errors import Stop, wrong_usage
from supervisor.cli.options import (
    JOB_ID,
    Function,
    Parsed,
    Target,
    as_json,
    confirm,
    flag,
    group,
    on_target,
    only_type,
    option,
    yes,
)
from supervisor.cli.output import document, heading, line, result, write
from supervisor.domain.job import Status
from supervisor.domain.text import counted, final_lines, pending_again

if TYPE_CHECKING:
    from supervisor.ops.commands import Change
    from supervisor.store.base import Operations

_LAST_LINES = 20  # of the latest log
STATES: dict[Change, tuple[Status, ...]] = {
    "retry": (Status.FAILED, Status.QUARANTINED),
    "cancel": (Status.PENDING, Status.RUNNING),
    "delete": (Status.DONE, Status.FAILED, Status.CANCELLED, Status.QUARANTINED),
}


def _status(text: str) -> Status:
    try:
        return Status(text)
    except ValueError:
        raise ValueError(f"{text!r} is none of {', '.join(Status)}") from None


def state_of(
    what: Change, text: str = "Jobs in this state, with --all.", **more: Any
) -> Callable[[Function], Function]:
    return option("--status", text, f"<{'|'.join(STATES[what])}>", type=Parsed(_status), **more)


@on_target
@option("--status", "Only jobs in this state.", "STATE", type=Parsed(_status))
@only_type
@option("--tag", "Only jobs with this tag in their meta; may be repeated.", "TAG", multiple=True)
@option("--limit", "The maximum number of jobs. Default: 20.", "N", type=click.IntRange(1, 1_000_000), default=20)
@option("--before", "Only jobs older than this one.", "ID", type=JOB_ID)
@as_json
def list_jobs(
    target: Target,
    status: Status | None,
    type: str | None,
    tag: tuple[str, ...],
    limit: int,
    before: int | None,
    as_json: bool,
) -> None:
    """List jobs, newest first."""
    from supervisor.cli import tables

    with target.operations() as operations:
        found = operations.jobs.latest(status=status, type=type, before=before, limit=limit, tags=tag)
        now = operations.statistics.now()
    if as_json:
        document([job.as_json() for job in found])
        return
    if not found:
        line("no jobs")
        return
    tables.jobs(found, now)
    if len(found) == limit and found[-1].id > 1:
        line(f"older jobs: --before {found[-1].id}")


@on_target
@click.argument("job_id", metavar="ID", type=JOB_ID)
@as_json
def show(target: Target, job_id: int, as_json: bool) -> None:
    """Show one job with its timeline, runs and errors.

    Also shows the end of the latest log; `supervisor logs ID` shows the logs of all runs.
    """
    from supervisor.cli import tables
    from supervisor.cli.logs import Printer
    from supervisor.ops.job_details import everything, limits_of, trials
    from supervisor.ops.run_logs import part_of
    from supervisor.ops.serving import why_waiting

    with target.operations() as operations:
        job, attempts, runs, worker, doing, host = everything(operations, job_id)
        now = operations.statistics.now()
        waits = why_waiting(operations, job, now)
        several = len({one.host for one in operations.registry.supervisors()}) > 1
    if doing is not None and doing.progress is not None:
        job = replace(job, progress=doing.progress, progress_text=doing.text or None)
    settings = target.settings_if_any()
    limits = [] if settings is None else limits_of(job, settings)
    if as_json:
        more = {"worker": worker, "host": host, "waits": waits or None, "limits": [one.as_json() for one in limits]}
        document(job.as_json() | more | {"errors": attempts, "runs": runs})
        return
    who = f"{worker} on {host}" if worker and host and several else worker
    tried = trials(runs, attempts)
    tables.job(job, now, tried, who, waits, limits)
    tables.runs(runs)
    latest = next((trial for trial in tried if trial.run is not None and trial.run.log), None)
    parts = []
    for trial in reversed(tried):
        part = part_of(job.id, job.type, trial)
        said = final_lines(part.text).split("\n") if trial is latest else []
        cut = len(said) - _LAST_LINES
        before = [f"({counted(cut, 'earlier line')}: supervisor logs {job.id})"] if cut > 0 else []
        part = part._replace(text="\n".join(before + said[-_LAST_LINES:]))
        if part.text or part.error:
            parts.append(part)
    if parts:
        write(heading("Logs and errors") + "\n")
        Printer(alone=True, as_json=False).print(parts)


def choosing(what: Change) -> Callable[[Function], Function]:
    """The parameters that choose the jobs of a change, see `_chosen`, and the options of every change."""
    which = "unfinished jobs, or those of" if what == "cancel" else "jobs in the state given by"
    parameters = (
        click.argument("job_ids", metavar="[ID]…", type=JOB_ID, nargs=-1),
        flag("--all all_", f"All {which} --status."),
        state_of(what),
        only_type,
        yes,
        as_json,
    )
    return lambda function: functools.reduce(lambda inner, add: add(inner), reversed(parameters), function)


@on_target
@choosing("retry")
@flag("--done", "Also run these jobs again if they are done; their results are deleted.")
def retry(target: Target, all_: bool, done: bool, as_json: bool, **which: Any) -> None:
    """Retry unsuccessful jobs.

    Returns failed, quarantined and cancelled jobs to the queue and resets their counters.
    """
    from supervisor.ops import commands

    if all_ and done:
        raise wrong_usage("--done is only valid with ids")
    with target.operations() as operations:
        ids = _chosen(operations, "retry", all_, done=done, **which)
        outcome = commands.retry(operations, ids, operations.statistics.now(), done=done)
    retried, duplicates = outcome.changed, len(outcome.duplicates)
    skipped = len(ids) - retried - duplicates
    if retried or all_ or as_json:
        told = {"retried": retried, "skipped": skipped, "duplicates": duplicates}
        result(told, pending_again(retried, skipped, duplicates), as_json=as_json)
    if not all_:
        commands.require_all(ids, outcome)


@on_target
@choosing("cancel")
def cancel(target: Target, all_: bool, as_json: bool, **which: Any) -> None:
    """Cancel pending jobs, stop running ones.

    The handler of a running job has the `cancel_grace` of its pool to stop, 5 seconds unless configured; then it is
    interrupted.
    """
    with target.operations() as operations:
        ids, now = _chosen(operations, "cancel", all_, **which), operations.statistics.now()
        if all_:
            changed = operations.actions.cancel_all(ids, now)
        else:
            statuses = {job_id: operations.actions.cancel(job_id, now) for job_id in ids}
    if all_:
        skipped = len(ids) - changed
        text = f"{counted(changed, 'job')} cancelled, or asked to stop" + (f", {skipped} skipped" if skipped else "")
        result({"cancelled": changed, "skipped": skipped}, text, as_json=as_json)
        return
    asked = "is running and was asked to stop; it is interrupted if it has not done so within its pool's cancel_grace"
    texts = [f"job {job_id} {'cancelled' if status.finished else asked}" for job_id, status in statuses.items()]
    result([{"id": job_id, "status": status} for job_id, status in statuses.items()], *texts, as_json=as_json)


@on_target
@choosing("delete")
def delete(target: Target, all_: bool, as_json: bool, **which: Any) -> None:
    """Delete finished jobs.

    `supervisor purge` deletes those that finished some time ago.
    """
    with target.operations() as operations:
        ids = _chosen(operations, "delete", all_, **which)
        deleted = operations.actions.delete(ids)
    skipped = len(ids) - deleted
    told = {"deleted": deleted} | ({"skipped": skipped} if all_ else {})
    text = f"{counted(deleted, 'job')} deleted" + (f", {skipped} skipped" if all_ and skipped else "")
    result(told, text, as_json=as_json)
    if skipped and not all_:
        raise Stop(f"{skipped} of {len(ids)} were not deleted: they were changed at the same time")


def _chosen(
    operations: Operations,
    what: Change,
    all_: bool,
    *,
    job_ids: tuple[int, ...],
    status: Status | None,
    type: str | None,
    yes: bool,
    done: bool = False,
) -> list[int]:
    """The ids of the jobs that are to be changed, which must be possible; after a question if there are several.

    Raises Stop if neither ids nor --all were given, or both.
    """
    from supervisor.ops import commands
    from supervisor.store.base import Filter

    if all_ and job_ids:
        raise wrong_usage("give either ids or --all, not both")
    if all_ and status is None and what != "cancel":  # to cancel all that is left is a plain wish
        raise wrong_usage(f"--all needs --status: {', '.join(STATES[what])}")
    if not all_ and (status is not None or type is not None):
        raise wrong_usage("--status and --type are only valid with --all")
    if not (all_ or job_ids):
        hint = f"supervisor jobs list --status {STATES[what][0]}"
        raise wrong_usage(f"give the ids of the jobs to {what}, or --all", hint)
    if all_:
        which = Filter(() if status is None else (status,), (type,) if type else ())
        ids = operations.jobs.ids(commands.meant(what, which))
    else:
        ids = list(dict.fromkeys(job_ids))
        commands.check(operations, what, ids, done=done)
    confirm(what, len(ids), yes=yes)
    return ids


jobs = group(
    "List, show, retry, cancel, delete jobs.",
    {"list": list_jobs, "show": show, "retry": retry, "cancel": cancel, "delete": delete},
)
