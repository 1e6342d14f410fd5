"""`jobs`: list, show and change jobs."""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from supervisor.cli.errors import CONFLICT, Stop, wrong_usage
from supervisor.cli.options import AsJson, JobId, OnlyType, SomeJobIds, Target, Yes, confirm, on_target
from supervisor.cli.output import document, line, result, write
from supervisor.cli.parser import Command, Group
from supervisor.domain.errors import ConfigError
from supervisor.domain.job import Status
from supervisor.domain.text import counted, pending_again

if TYPE_CHECKING:
    from supervisor.ops.commands import Change
    from supervisor.store.base import Operations


class Unsuccessful(enum.StrEnum):
    """The states that `jobs retry --all` accepts."""

    FAILED = "failed"
    QUARANTINED = "quarantined"


class Unfinished(enum.StrEnum):
    """The states that `jobs cancel --all` accepts."""

    PENDING = "pending"
    RUNNING = "running"


class Finished(enum.StrEnum):
    """The states that `jobs delete --all` and `purge` accept."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    QUARANTINED = "quarantined"


jobs = typer.Typer(name="jobs", cls=Group, rich_markup_mode=None, add_completion=False)


@jobs.callback(invoke_without_command=True, help="List, show, retry, cancel, delete jobs.")
def _group(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        write(context.get_help() + "\n")


@jobs.command("list", cls=Command)
@on_target
def list_jobs(
    target: Target,
    status: Annotated[
        Status | None, typer.Option("--status", help="Only jobs in this state.", show_default=False)
    ] = None,
    type: OnlyType = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG", help="Only jobs with this tag in their meta; may be repeated."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=1_000_000, help="The maximum number of jobs.")
    ] = 20,
    before: Annotated[
        int | None,
        typer.Option(
            "--before", metavar="ID", min=1, max=2**63 - 1, help="Only jobs older than this one.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    from supervisor.cli import tables

    with target.operations() as operations:
        found = operations.jobs.latest(status=status, type=type, before=before, limit=limit, tags=tuple(tag or ()))
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


@jobs.command(cls=Command)
@on_target
def show(
    target: Target,
    job_id: JobId,
    log: Annotated[bool, typer.Option("--log", help="Show everything that its runs logged and printed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show one job with its timeline, runs and errors.

    Also shows the end of the latest log; with --log, the full log of every run.
    """
    from supervisor.cli import tables
    from supervisor.ops.job_details import everything, limits_of, trials
    from supervisor.ops.serving import why_waiting

    with target.operations() as operations:
        job, attempts, runs, worker, doing, host = everything(operations, job_id)
        now = operations.statistics.now()
        waits = why_waiting(operations, job, now)
        several = len({one.host for one in operations.registry.supervisors()}) > 1
    if doing is not None and doing.progress is not None:
        job = replace(job, progress=doing.progress, progress_text=doing.text or None)
    try:
        settings = target.settings_if_any()
    except ConfigError:
        settings = None  # the database is known without it
    limits = [] if settings is None else limits_of(job, settings)
    if as_json:
        more = {"worker": worker, "host": host, "waits": waits or None, "limits": [one.as_json() for one in limits]}
        document(job.as_json() | more | {"errors": attempts, "runs": runs})
        return
    held = tables.Held(f"{worker} on {host}" if worker and host and several else worker, waits, limits)
    tables.job(job, now, trials(runs, attempts), held)
    tables.runs(runs)
    tables.attempts(attempts)
    tables.logs(runs, whole=log)


@jobs.command(cls=Command)
@on_target
def retry(
    target: Target,
    job_ids: SomeJobIds = None,
    all_: Annotated[bool, typer.Option("--all", help="Retry all jobs in the state given by --status.")] = False,
    status: Annotated[
        Unsuccessful | None,
        typer.Option("--status", help="The state of the jobs to retry, with --all.", show_default=False),
    ] = None,
    type: OnlyType = None,
    done: Annotated[
        bool, typer.Option("--done", help="Also run these jobs again if they are done; their results are deleted.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Retry unsuccessful jobs.

    Returns failed, quarantined and cancelled jobs to the queue and resets their counters.
    """
    from supervisor.ops import commands

    ids = _chosen("retry", Unsuccessful, job_ids, all_, status, type)
    if all_ and done:
        raise wrong_usage("--done is only valid with ids")
    with target.operations() as operations:
        if all_:
            ids = _all(operations, "retry", status, type)
            confirm("retry", len(ids), yes=yes)
            retried, duplicates = commands.change(operations, "retry", ids, operations.statistics.now())
            outcome = None
        else:
            try:
                commands.check(operations, "retry", ids, done=done)
            except commands.HasSucceeded as error:
                hint = "with --done it runs again, and its result is deleted"
                raise Stop(str(error), code=CONFLICT, hint=hint) from None
            confirm("retry", len(ids), yes=yes)
            outcome = commands.retry(operations, ids, operations.statistics.now(), done=done)
            retried, duplicates = outcome.changed, len(outcome.duplicates)
    skipped = len(ids) - retried - duplicates
    told = {"retried": retried, "skipped": skipped, "duplicates": duplicates}
    if retried or all_ or as_json:
        result(told, pending_again(retried, skipped, duplicates), as_json=as_json)
    if outcome is not None:
        commands.require_all(ids, outcome)


def _chosen(
    what: str, states: type[enum.StrEnum], job_ids: list[int] | None, all_: bool, status: object, type_: str | None
) -> list[int]:
    """The given ids, or none with --all. Raises Stop if neither or both were given."""
    if all_ and job_ids:
        raise wrong_usage("give either ids or --all, not both")
    if all_ and status is None and states is not Unfinished:  # to cancel all that is left is a plain wish
        one, *others = (f"--status {state}" for state in reversed(states))
        raise wrong_usage(f"--all needs {', '.join(reversed(others))} or {one}")
    if not all_ and (status is not None or type_ is not None):
        raise wrong_usage("--status and --type are only valid with --all")
    if not all_ and not job_ids:
        first = next(iter(states))
        raise wrong_usage(f"give the ids of the jobs to {what}, or --all", f"supervisor jobs list --status {first}")
    return list(dict.fromkeys(job_ids or ()))


def _all(operations: Operations, what: Change, status: enum.StrEnum | None, type_: str | None) -> list[int]:
    """The ids of those that --all means."""
    from supervisor.ops import commands
    from supervisor.store.base import Filter

    which = Filter(() if status is None else (Status(status),), (type_,) if type_ else ())
    return operations.jobs.ids(commands.meant(what, which))


@jobs.command(cls=Command)
@on_target
def cancel(
    target: Target,
    job_ids: SomeJobIds = None,
    all_: Annotated[bool, typer.Option("--all", help="Cancel all unfinished jobs, or those of --status.")] = False,
    status: Annotated[
        Unfinished | None,
        typer.Option("--status", help="Only jobs in this state, with --all.", show_default=False),
    ] = None,
    type: OnlyType = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Cancel pending jobs, stop running ones.

    The handler of a running job has the `cancel_grace` of its pool to stop, 5 seconds unless configured; then it is
    interrupted.
    """
    from supervisor.ops import commands

    ids = _chosen("cancel", Unfinished, job_ids, all_, status, type)
    with target.operations() as operations:
        if all_:
            ids = _all(operations, "cancel", status, type)
            confirm("cancel", len(ids), yes=yes)
            changed = operations.actions.cancel_all(ids, operations.statistics.now())
            told: object = {"cancelled": changed, "skipped": len(ids) - changed}
            text = f"{counted(changed, 'job')} cancelled, or asked to stop" + _skipped(len(ids) - changed)
            result(told, text, as_json=as_json)
            return
        commands.check(operations, "cancel", ids)
        confirm("cancel", len(ids), yes=yes)
        now = operations.statistics.now()
        statuses = {job_id: operations.actions.cancel(job_id, now) for job_id in ids}
    asked = "is running and was asked to stop; it is interrupted if it has not done so within its pool's cancel_grace"
    texts = [f"job {job_id} {'cancelled' if status.finished else asked}" for job_id, status in statuses.items()]
    result([{"id": job_id, "status": status} for job_id, status in statuses.items()], *texts, as_json=as_json)


@jobs.command(cls=Command)
@on_target
def delete(
    target: Target,
    job_ids: SomeJobIds = None,
    all_: Annotated[bool, typer.Option("--all", help="Delete all jobs in the state given by --status.")] = False,
    status: Annotated[
        Finished | None,
        typer.Option("--status", help="The state of the jobs to delete, with --all.", show_default=False),
    ] = None,
    type: OnlyType = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete finished jobs.

    `supervisor purge` deletes those that finished some time ago.
    """
    from supervisor.ops import commands

    ids = _chosen("delete", Finished, job_ids, all_, status, type)
    with target.operations() as operations:
        if all_:
            ids = _all(operations, "delete", status, type)
        else:
            commands.check(operations, "delete", ids)
        confirm("delete", len(ids), yes=yes)
        deleted = operations.actions.delete(ids)
    skipped = len(ids) - deleted
    told = {"deleted": deleted} | ({"skipped": skipped} if all_ else {})
    result(told, f"{counted(deleted, 'job')} deleted" + (_skipped(skipped) if all_ else ""), as_json=as_json)
    if skipped and not all_:
        raise Stop(f"{skipped} of {len(ids)} were not deleted: they were changed at the same time")


def _skipped(number: int) -> str:
    return f", {number} skipped" if number else ""
