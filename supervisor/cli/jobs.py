"""`jobs`: list, show and change jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from supervisor.cli.errors import CONFLICT, Stop, wrong_usage
from supervisor.cli.options import AsJson, JobId, OnlyType, SomeJobIds, Target, Yes, confirm, on_target, option
from supervisor.cli.output import document, heading, line, result, write
from supervisor.domain.job import Status
from supervisor.domain.text import counted, final_lines, pending_again

if TYPE_CHECKING:
    from supervisor.store.base import Filter, Operations

Change = Literal["retry", "cancel", "delete"]
_LAST_LINES = 20  # of a log that is shown without --log
HELP = "List, show, retry, cancel, delete jobs."
STATES: dict[Change, tuple[Status, ...]] = {
    "retry": (Status.FAILED, Status.QUARANTINED),
    "cancel": (Status.PENDING, Status.RUNNING),
    "delete": (Status.DONE, Status.FAILED, Status.CANCELLED, Status.QUARANTINED),
}


def state_of(what: Change, text: str = "Jobs in this state, with --all.") -> Any:
    return option("--status", text, f"<{'|'.join(STATES[what])}>")


All = Annotated[bool, option("--all", "All jobs in the state given by --status.")]


@on_target
def list_jobs(
    target: Target,
    status: Annotated[Status | None, option("--status", "Only jobs in this state.")] = None,
    type: OnlyType = None,
    tag: Annotated[
        list[str] | None, option("--tag", "Only jobs with this tag in their meta; may be repeated.", "TAG")
    ] = None,
    limit: Annotated[
        int, option("--limit", "The maximum number of jobs. Default: 20.", "N", min=1, max=1_000_000)
    ] = 20,
    before: Annotated[
        int | None, option("--before", "Only jobs older than this one.", "ID", min=1, max=2**63 - 1)
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


@on_target
def show(
    target: Target,
    job_id: JobId,
    log: Annotated[bool, option("--log", "Show everything that its runs logged and printed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show one job with its timeline, runs and errors.

    Also shows the end of the latest log; with --log, the full log of every run.
    """
    from supervisor.cli import tables
    from supervisor.cli.logs import Printer
    from supervisor.ops.job_details import everything, trials
    from supervisor.ops.run_logs import part_of
    from supervisor.ops.serving import why_waiting

    with target.operations() as operations:
        job, attempts, runs, worker, doing, host = everything(operations, job_id)
        now = operations.statistics.now()
        waits = why_waiting(operations, job, now)
        several = len({one.host for one in operations.registry.supervisors()}) > 1
    if doing is not None and doing.progress is not None:
        job = replace(job, progress=doing.progress, progress_text=doing.text or None)
    if as_json:
        more = {"worker": worker, "host": host, "waits": waits or None, "errors": attempts, "runs": runs}
        document(job.as_json() | more)
        return
    who = f"{worker} on {host}" if worker and host and several else worker
    tried = trials(runs, attempts)
    tables.job(job, now, tried, who, waits)
    tables.runs(runs)
    latest = next((trial for trial in tried if trial.run is not None and trial.run.log), None)
    parts = []
    for trial in reversed(tried):
        part = part_of(job.id, job.type, trial)
        if not log:
            said = final_lines(part.text).split("\n") if trial is latest else []
            left_out = len(said) - _LAST_LINES
            before = [f"({counted(left_out, 'earlier line')}: --log)"] if left_out > 0 else []
            part = part._replace(text="\n".join(before + said[-_LAST_LINES:]))
        if part.text or part.error:
            parts.append(part)
    if parts:
        write(heading("Logs and errors") + "\n")
        Printer(alone=True, as_json=False).print(parts)


@on_target
def retry(
    target: Target,
    job_ids: SomeJobIds = None,
    all_: All = False,
    status: Annotated[Status | None, state_of("retry")] = None,
    type: OnlyType = None,
    done: Annotated[
        bool, option("--done", "Also run these jobs again if they are done; their results are deleted.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Retry unsuccessful jobs.

    Returns failed, quarantined and cancelled jobs to the queue and resets their counters.
    """
    from supervisor.ops import commands

    given = _given("retry", job_ids, all_, status, type)
    if all_ and done:
        raise wrong_usage("--done is only valid with ids")
    with target.operations() as operations:
        try:
            ids = _chosen(operations, "retry", given, yes=yes, done=done)
        except commands.HasSucceeded as error:
            hint = "with --done it runs again, and its result is deleted"
            raise Stop(str(error), code=CONFLICT, hint=hint) from None
        outcome = commands.retry(operations, ids, operations.statistics.now(), done=done)
    retried, duplicates = outcome.changed, len(outcome.duplicates)
    skipped = len(ids) - retried - duplicates
    if retried or all_ or as_json:
        told = {"retried": retried, "skipped": skipped, "duplicates": duplicates}
        result(told, pending_again(retried, skipped, duplicates), as_json=as_json)
    if not all_:
        commands.require_all(ids, outcome)


@on_target
def cancel(
    target: Target,
    job_ids: SomeJobIds = None,
    all_: Annotated[bool, option("--all", "All unfinished jobs, or those of --status.")] = False,
    status: Annotated[Status | None, state_of("cancel")] = None,
    type: OnlyType = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Cancel pending jobs, stop running ones.

    The handler of a running job has the `cancel_grace` of its pool to stop, 5 seconds unless configured; then it is
    interrupted.
    """
    given = _given("cancel", job_ids, all_, status, type)
    with target.operations() as operations:
        ids = _chosen(operations, "cancel", given, yes=yes)
        now = operations.statistics.now()
        if all_:
            changed = operations.actions.cancel_all(ids, now)
            skipped = len(ids) - changed
            text = f"{counted(changed, 'job')} cancelled, or asked to stop" + (
                f", {skipped} skipped" if skipped else ""
            )
            result({"cancelled": changed, "skipped": skipped}, text, as_json=as_json)
            return
        statuses = {job_id: operations.actions.cancel(job_id, now) for job_id in ids}
    asked = "is running and was asked to stop; it is interrupted if it has not done so within its pool's cancel_grace"
    texts = [f"job {job_id} {'cancelled' if status.finished else asked}" for job_id, status in statuses.items()]
    result([{"id": job_id, "status": status} for job_id, status in statuses.items()], *texts, as_json=as_json)


@on_target
def delete(
    target: Target,
    job_ids: SomeJobIds = None,
    all_: All = False,
    status: Annotated[Status | None, state_of("delete")] = None,
    type: OnlyType = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete finished jobs.

    `supervisor purge` deletes those that finished some time ago.
    """
    given = _given("delete", job_ids, all_, status, type)
    with target.operations() as operations:
        ids = _chosen(operations, "delete", given, yes=yes)
        deleted = operations.actions.delete(ids)
    skipped = len(ids) - deleted
    told = {"deleted": deleted} | ({"skipped": skipped} if all_ else {})
    text = f"{counted(deleted, 'job')} deleted" + (f", {skipped} skipped" if all_ and skipped else "")
    result(told, text, as_json=as_json)
    if skipped and not all_:
        raise Stop(f"{skipped} of {len(ids)} were not deleted: they were changed at the same time")


def _given(
    what: Change, ids: list[int] | None, all_: bool, status: Status | None, type_: str | None
) -> list[int] | Filter:
    """The ids, or with --all what it means. Raises Stop if neither or both were given."""
    from supervisor.store.base import Filter

    if all_ and ids:
        raise wrong_usage("give either ids or --all, not both")
    if all_ and status is None and what != "cancel":  # to cancel all that is left is a plain wish
        raise wrong_usage(f"--all needs --status: {', '.join(STATES[what])}")
    if all_:
        return Filter(() if status is None else (status,), (type_,) if type_ else ())
    if status is not None or type_ is not None:
        raise wrong_usage("--status and --type are only valid with --all")
    if not ids:
        hint = f"supervisor jobs list --status {STATES[what][0]}"
        raise wrong_usage(f"give the ids of the jobs to {what}, or --all", hint)
    return list(dict.fromkeys(ids))


def _chosen(
    operations: Operations, what: Change, given: list[int] | Filter, *, yes: bool, done: bool = False
) -> list[int]:
    """The ids of jobs that can be changed so, after a question if there are several."""
    from supervisor.ops import commands

    if isinstance(given, list):
        ids = given
        commands.check(operations, what, ids, done=done)
    else:
        ids = operations.jobs.ids(commands.meant(what, given))
    confirm(what, len(ids), yes=yes)
    return ids


COMMANDS = {"list": list_jobs, "show": show, "retry": retry, "cancel": cancel, "delete": delete}
