"""`jobs`: list, show and change jobs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.errors import Stop, wrong_usage
from supervisor.cli.options import (
    BATCH_ID,
    JOB_ID,
    Answer,
    Function,
    Target,
    answering,
    confirm,
    flag,
    group,
    only_type,
    option,
    yes,
)
from supervisor.cli.output import heading, line, write
from supervisor.domain.errors import Conflict
from supervisor.domain.job import Job, Reason, Status
from supervisor.domain.text import counted, final_lines, pending_again

if TYPE_CHECKING:
    from supervisor.ops.commands import Change
    from supervisor.ops.job_details import Trial
    from supervisor.store.base import Operations

_LAST_LINES = 20  # of the latest log
STATES: dict[Change, tuple[str, ...]] = {
    "retry": ("failed", "quarantined"),
    "cancel": ("pending", "held", "running"),
    "delete": ("done", "failed", "cancelled", "quarantined"),
}


def state_of(
    what: Change, text: str = "Jobs in this state, with --all.", **more: Any
) -> Callable[[Function], Function]:
    return option("--status", text, f"<{'|'.join(STATES[what])}>", type=click.Choice(STATES[what]), **more)


@answering
@option("--status", "Only jobs in this state.", "STATE", type=click.Choice([status.value for status in Status]))
@only_type
@option("--batch", "Only jobs of this batch.", "ID", type=BATCH_ID)
@option("--tag", "Only jobs with this tag in their meta; may be repeated.", "TAG", multiple=True)
@option("--limit", "The maximum number of jobs. Default: 20.", "N", type=click.IntRange(1, 1_000_000), default=20)
@option("--before", "Only jobs older than this one.", "ID", type=JOB_ID)
def list_jobs(
    target: Target,
    status: str | None,
    type: str | None,
    batch: int | None,
    tag: tuple[str, ...],
    limit: int,
    before: int | None,
) -> Answer:
    """List jobs, newest first."""
    with target.operations() as operations:
        state = None if status is None else Status(status)
        found = operations.jobs.latest(status=state, type=type, before=before, limit=limit, tags=tag, batch=batch)
        now = operations.statistics.now()

    def show() -> None:
        from supervisor.cli import tables

        if found:
            tables.jobs(found, now)
        else:
            line("no jobs")
        if len(found) == limit and found[-1].id > 1:
            line(f"older jobs: --before {found[-1].id}")

    return Answer([job.as_json() for job in found], show=show)


@answering
@click.argument("job_id", metavar="ID", type=JOB_ID)
def show(target: Target, job_id: int) -> Answer:
    """Show one job with its timeline, runs and errors.

    Also shows the end of the latest log; `supervisor logs ID` shows the logs of all runs.
    """
    from supervisor.ops.job_details import everything, limits_of, trials
    from supervisor.ops.serving import why_waiting

    with target.operations() as operations:
        job, attempts, runs, worker, doing, host, after = everything(operations, job_id)
        now = operations.statistics.now()
        waits = "; ".join(map(str, why_waiting(operations, job)))
        several = len({one.host for one in operations.registry.supervisors()}) > 1
    if doing is not None and doing.progress is not None:
        job = replace(job, progress=doing.progress, progress_text=doing.text or None)
    settings = target.settings_if_any()
    limits = [] if settings is None else limits_of(job, settings)

    def show() -> None:
        from supervisor.cli import tables

        tried = trials(runs, attempts)
        who = f"{worker} on {host}" if worker and host and several else worker
        tables.job(job, now, tried, who, waits, limits, after)
        tables.runs(runs)
        _logs_and_errors(job.id, job.type, tried)

    more = {
        "worker": worker,
        "host": host,
        "after": after,
        "waits": waits or None,
        "limits": [one.as_json() for one in limits],
    }
    return Answer(job.as_json() | more | {"errors": attempts, "runs": runs}, show=show)


@answering
@click.argument("job_id", metavar="ID", type=JOB_ID)
def why(target: Target, job_id: int) -> Answer:
    """Say why a job does not run, and what helps.

    Of one that runs or has ended, how.
    """
    from supervisor.ops.serving import why as explain

    with target.operations() as operations:
        job, reasons = explain(operations, job_id)
    return _explained(job, reasons)


def _explained(job: Job, reasons: Sequence[Reason]) -> Answer:
    lines = [part for each in reasons for part in (each.text, f"→ {each.advice}" if each.advice else "") if part]
    value = {"id": job.id, "type": job.type, "status": job.status, "reasons": reasons}
    return Answer(value, f"job {job.id} ({job.type}) is {job.status}", *lines)


@answering
@click.argument("job_id", metavar="ID", type=JOB_ID)
def run_now(target: Target, job_id: int) -> Answer:
    """Let a job run that is held, or not due yet.

    It passes its limits, the jobs before it and its time; then says what still keeps it from running.
    """
    from supervisor.ops import commands, serving

    with target.operations() as operations:
        commands.run_now(operations, job_id, operations.statistics.now())
        return _explained(*serving.why(operations, job_id))


def _logs_and_errors(job: int, type_: str, tried: list[Trial]) -> None:
    """Print each error, and the last lines of the latest log. `tried` begins with the latest."""
    from supervisor.cli.logs import Printer
    from supervisor.ops.run_logs import part_of

    parts = []
    latest = next((trial for trial in tried if trial.run is not None and trial.run.log), None)
    for trial in reversed(tried):
        part = part_of(job, type_, trial)
        said = final_lines(part.text).split("\n") if trial is latest else []
        cut = len(said) - _LAST_LINES
        before = [f"({counted(cut, 'earlier line')}: supervisor logs {job})"] if cut > 0 else []
        part = part._replace(text="\n".join(before + said[-_LAST_LINES:]))
        if part.text or part.error:
            parts.append(part)
    if parts:
        write(heading("Logs and errors") + "\n")
        Printer(alone=True, as_json=False).print(parts)


def choosing(what: Change) -> Callable[[Function], Function]:
    """The parameters that choose the jobs of a change, see `_chosen`."""
    which = "unfinished jobs, or those of" if what == "cancel" else "jobs in the state given by"

    parameters = (
        click.argument("job_ids", metavar="[ID]…", type=JOB_ID, nargs=-1),
        flag("--all all_", f"All {which} --status."),
        state_of(what),
        only_type,
        option("--batch", "All of this batch.", "ID", type=BATCH_ID),
        yes,
    )
    return lambda function: functools.reduce(lambda inner, add: add(inner), reversed(parameters), function)


@answering
@choosing("retry")
@flag("--done", "Also run these jobs again if they are done; their results are deleted.")
def retry(target: Target, all_: bool, done: bool, **which: Any) -> Answer:
    """Retry unsuccessful jobs.

    Returns failed, quarantined and cancelled jobs to the queue and resets their counters.
    """
    from supervisor.ops import commands

    all_ = all_ or which["batch"] is not None
    if all_ and done:
        raise wrong_usage("--done is only valid with ids")
    failure = None
    with target.operations() as operations:
        ids = _chosen(operations, "retry", all_, done=done, **which)
        outcome = commands.retry(operations, ids, operations.statistics.now(), done=done)
    try:
        if not all_:
            commands.require_all(ids, outcome)
    except Conflict as error:
        failure = error
    retried, duplicates = outcome.changed, len(outcome.duplicates)
    skipped = len(ids) - retried - duplicates
    lines = [pending_again(retried, skipped, duplicates)] if retried or all_ else []
    value = {"retried": retried, "skipped": skipped, "duplicates": duplicates}
    return Answer(value, *lines, failure=failure)


@answering
@choosing("cancel")
def cancel(target: Target, all_: bool, **which: Any) -> Answer:
    """Cancel held and pending jobs, ask running ones to stop.

    The handler of a running job has the `cancel_grace` of its pool to stop, 5 seconds unless configured; then it is
    interrupted.
    """
    all_ = all_ or which["batch"] is not None
    with target.operations() as operations:
        ids, now = _chosen(operations, "cancel", all_, **which), operations.statistics.now()
        if all_:
            changed = operations.actions.cancel_all(ids, now)
            skipped = len(ids) - changed
            text = f"{counted(changed, 'job')} cancelled, or asked to stop" + (
                f", {skipped} skipped" if skipped else ""
            )
            return Answer({"cancelled": changed, "skipped": skipped}, text)
        statuses = {job_id: operations.actions.cancel(job_id, now) for job_id in ids}
    asked = "was asked to stop; it will be interrupted if it has not stopped within its pool's cancel_grace"
    lines = [f"job {job_id} {'cancelled' if status.finished else asked}" for job_id, status in statuses.items()]
    return Answer([{"id": job_id, "status": status} for job_id, status in statuses.items()], *lines)


@answering
@choosing("delete")
def delete(target: Target, all_: bool, **which: Any) -> Answer:
    """Delete finished jobs.

    `supervisor purge` deletes those that finished some time ago.
    """
    all_ = all_ or which["batch"] is not None
    with target.operations() as operations:
        ids = _chosen(operations, "delete", all_, **which)
        deleted = operations.actions.delete(ids)
    text, skipped = f"{counted(deleted, 'job')} deleted", len(ids) - deleted
    if all_:
        return Answer({"deleted": deleted, "skipped": skipped}, text + (f", {skipped} skipped" if skipped else ""))
    gone = Stop(f"{skipped} of {len(ids)} were not deleted: they were changed at the same time")
    return Answer({"deleted": deleted}, text, failure=gone if skipped else None)


def _chosen(
    operations: Operations,
    what: Change,
    all_: bool,
    *,
    job_ids: tuple[int, ...],
    status: str | None,
    type: str | None,
    batch: int | None,
    yes: bool,
    done: bool = False,
) -> list[int]:
    """The ids of the jobs that are to be changed, which must be possible; after a question if there are several.

    Raises Stop if neither ids nor --all were given, or both.
    """
    from supervisor.ops import commands
    from supervisor.store.base import Filter

    if all_ and job_ids:
        raise wrong_usage(f"give either ids or {'--all' if batch is None else '--batch'}, not both")
    if all_ and status is None and what != "cancel":  # to cancel all that is left is a plain wish
        raise wrong_usage(f"{'--all' if batch is None else '--batch'} needs --status: {', '.join(STATES[what])}")
    if not all_ and (status is not None or type is not None):
        raise wrong_usage("--status and --type are only valid with --all or --batch")
    if not (all_ or job_ids):
        hint = f"supervisor jobs list --status {STATES[what][0]}"
        raise wrong_usage(f"give the ids of the jobs to {what}, or --all", hint)
    if all_:
        which = Filter(() if status is None else (Status(status),), (type,) if type else (), batch=batch)
        ids = operations.jobs.ids(commands.meant(what, which))
    else:
        ids = list(dict.fromkeys(job_ids))
        commands.check(operations, what, ids, done=done, option="--done")
    confirm(what, len(ids), yes=yes)
    return ids


@answering
@click.argument("batch_id", metavar="[ID]", type=BATCH_ID, required=False)
@flag("--close", "All its jobs are there: it ends with the last of them, at once if they have ended.")
def batch(target: Target, batch_id: int | None, close: bool) -> Answer:
    """Show a batch, or those that have not ended.

    One that stays open, since its program was killed or has failed before it was complete, is closed with --close.
    """
    if close and batch_id is None:
        raise wrong_usage("--close: give the id of the batch")
    with target.operations() as operations:
        if close and batch_id is not None:
            operations.batches.close(batch_id)
        found = operations.batches.latest() if batch_id is None else [operations.batches.get(batch_id)]
        now = operations.statistics.now()

    def show() -> None:
        from supervisor.cli import tables

        if found:
            tables.batches(found, now)
            if any(one.state == "open" for one in found):
                line("→ nothing follows an open batch; if its program adds no more jobs, `--close` with its id ends it")
        else:
            line("all batches have ended")

    return Answer(found if batch_id is None else found[0], show=show)


jobs = group(
    "List, show, explain, run, retry, cancel, delete jobs; show and close batches.",
    {
        "list": list_jobs,
        "show": show,
        "why": why,
        "run-now": run_now,
        "retry": retry,
        "cancel": cancel,
        "delete": delete,
        "batch": batch,
    },
)
