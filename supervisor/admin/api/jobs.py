"""Jobs: list, enqueue, show, retry, cancel and delete; many jobs that match a filter: the first request lists them, the
second changes exactly these.

Any program may have written their rows, so only the table's constraints are assumed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, HTTPException, Query, Request
from starlette.responses import JSONResponse, Response

from supervisor.admin.answers import Refused, answer, changing, reading, streaming
from supervisor.admin.api import models
from supervisor.admin.state import MOST_IDS, AppState, TheState, may_change
from supervisor.admin.store_executor import StoreExecutor
from supervisor.admin.streams import EventStream
from supervisor.config.settings import AdminSettings
from supervisor.domain.enqueueing import new_job, payload_of
from supervisor.domain.errors import ConfigError
from supervisor.domain.job import Attempt, Job, Run, Status
from supervisor.domain.job_stream import position_of
from supervisor.ops import commands
from supervisor.ops.job_details import Doing, Everything, everything, running, steps, trials
from supervisor.ops.serving import why as explain
from supervisor.ops.views import finite
from supervisor.store.base import Filter, Operations, Page

ROUND = 1000  # jobs per database call, so that other calls get their turn; transactions are shorter

router = APIRouter(prefix="/api/admin/jobs")
events = APIRouter()
_JOB = (
    "`event: job` with the state and the progress, at once and with each change; `event: attempt` when a run begins; "
    "`event: chunk` for what it emits; `event: lost` with the number of chunks that are missing before the next one; "
    "`event: trouble` with an error while the database cannot be used; `event: end` with the final state, and the "
    "answer ends. Comments as heartbeats."
)

_STORED = frozenset({"created_at", "updated_at"})  # columns of jobs that may hold a text as well
NoBody = Annotated[models.Empty | None, Body()]
RetryBody = Annotated[models.Retry | None, Body()]


def filter_of(which: models.JobFilter, settings: AdminSettings) -> Filter:
    """Raises Refused for a search in what may not be seen."""
    if which.text and not settings.show_payloads:
        hint = "payloads are hidden, so `text` cannot be used; `error` can, or set show_payloads = true in [admin]"
        raise Refused(403, hint)
    return which.as_filter()


@router.get("", tags=["jobs"], response_model=models.JobPage, responses=reading(403, 422))
async def list_jobs(state: TheState, query: Annotated[models.JobQuery, Query()]) -> JSONResponse:
    """List jobs, newest first, one page at a time, or the first ones of another order. All filters may be combined.

    `status`, `type`, `tag` and `id` may be repeated.
    """
    which = filter_of(query, state.settings)

    def look(operations: Operations) -> tuple[Page, dict[int, Doing]]:
        if query.sort is None:
            page = operations.jobs.page(which, before=query.before, limit=query.limit)
        else:
            descending = query.order == "desc"
            page = operations.jobs.arranged(
                which, by=query.sort, descending=descending, before=query.before, limit=query.limit
            )
        return page, running(operations) if any(job.status is Status.RUNNING for job in page.jobs) else {}

    page, doing = await state.executor.ask(look)
    jobs = [_summary(job, doing.get(job.id) if job.status is Status.RUNNING else None) for job in page.jobs]
    return answer({"jobs": jobs, "next": page.next})


@router.post(
    "",
    tags=["jobs"],
    response_model=models.Enqueued,
    status_code=201,
    responses={200: {"model": models.Enqueued, "description": "A job has this key."}, **changing(409)},
)
async def enqueue(state: TheState, job: models.NewJob) -> JSONResponse:
    """Enqueue a job. When the answer comes, the job survives a power loss."""
    job_id, new = await state.requests.insert(new_job(**dict(job)))
    location = {"Location": f"/api/admin/jobs/{job_id}"}
    return answer({"id": job_id, "duplicate": not new}, 201 if new else 200, location)


@router.post("/retry", tags=["many jobs"], response_model=models.BulkAnswer, responses=changing(409))
async def retry_many(state: TheState, request: models.BulkRequest) -> JSONResponse:
    """Return unsuccessful jobs to pending, due now, counters reset. Without a state: failed and quarantined ones."""
    return await _change("retry", state, request)


@router.post("/cancel", tags=["many jobs"], response_model=models.BulkAnswer, responses=changing(409))
async def cancel_many(state: TheState, request: models.BulkRequest) -> JSONResponse:
    """Cancel held and pending jobs, ask running ones to stop. Without a state: all of these."""
    return await _change("cancel", state, request)


@router.post("/delete", tags=["many jobs"], response_model=models.BulkAnswer, responses=changing(409))
async def delete_many(state: TheState, request: models.BulkRequest) -> JSONResponse:
    """Delete finished jobs with their errors and runs. Without a state: all finished ones."""
    return await _change("delete", state, request)


@router.api_route("/retry", methods=["GET", "DELETE"], include_in_schema=False)
@router.api_route("/cancel", methods=["GET", "DELETE"], include_in_schema=False)
@router.api_route("/delete", methods=["GET", "DELETE"], include_in_schema=False)
async def no_job() -> None:
    """These words are not ids of jobs."""
    raise HTTPException(405, headers={"Allow": "POST"})


@router.get("/{job_id}", tags=["jobs"], response_model=models.JobDocument, responses=reading(404, 422))
async def show(state: TheState, job_id: models.JobId) -> JSONResponse:
    """One job with its errors, its runs and their logs, and its timeline."""
    found = await state.executor.ask(lambda operations: everything(operations, job_id))
    return answer(_document(found, show=state.settings.show_payloads))


@router.get("/{job_id}/why", tags=["jobs"], response_model=models.Why, responses=reading(404, 422))
async def why(state: TheState, job_id: models.JobId) -> JSONResponse:
    """Why the job does not run, and what helps; of one that runs or has ended, how."""
    job, reasons = await state.executor.ask(lambda operations: explain(operations, job_id))
    return answer({"id": job.id, "type": job.type, "status": job.status, "reasons": reasons})


LastEventId = Annotated[
    str,
    Header(
        alias="Last-Event-ID",
        pattern=r"^(\d{1,18}\.\d{1,18})?$",
        description="The `id` of the last event that was received: the stream goes on behind it.",
    ),
]
_ID = {"type": "string", "description": "For the header `Last-Event-ID`."}


@events.get(
    "/jobs/{job_id}/events",
    tags=["jobs"],
    response_class=Response,
    response_description=_JOB,
    responses={
        200: streaming("job", "attempt", "chunk", "lost", "trouble", "end", id=_ID),
        **reading(404, 422),
    },
)
async def job_events(
    state: TheState, request: Request, job_id: models.JobId, last_event_id: LastEventId = ""
) -> Response:
    """What becomes of a job, and what it emits, from the start of its run.

    Chunks and the result are for the full token, which could have made the job. For the read token, they are null and
    `redacted` is true, unless `show_payloads` is set.
    """
    stream = await state.streams.join(job_id, position_of(last_event_id))
    show = state.settings.show_payloads or may_change(request)
    return EventStream(state.streams.events(stream, show=show), lambda: state.streams.leave(stream))


@router.delete("/{job_id}", tags=["jobs"], response_model=models.Changed, responses=changing(404, 409))
async def delete(state: TheState, job_id: models.JobId) -> JSONResponse:
    """Delete a finished job with its errors and runs."""

    def act(operations: Operations) -> None:
        commands.check(operations, "delete", [job_id])
        operations.actions.delete([job_id])

    await state.executor.ask(act)
    return answer({"id": job_id, "status": "deleted"})


@router.post("/{job_id}/retry", tags=["jobs"], response_model=models.Changed, responses=changing(404, 409))
async def retry(state: TheState, job_id: models.JobId, body: RetryBody = None) -> JSONResponse:
    """Return a failed, quarantined or cancelled job to pending, due now, with its counters reset.

    With `payload`, it runs with that; with `done: true`, a job that has succeeded runs again.
    """
    wanted = body or models.Retry()
    payload = payload_of(wanted.payload) if "payload" in wanted.model_fields_set else None

    def act(operations: Operations) -> None:
        commands.rerun(operations, job_id, operations.statistics.now(), payload=payload, done=wanted.done)

    await state.executor.ask(act)
    return answer({"id": job_id, "status": "pending"})


@router.post("/{job_id}/run-now", tags=["jobs"], response_model=models.Changed, responses=changing(404, 409))
async def run_now(state: TheState, job_id: models.JobId, body: NoBody = None) -> JSONResponse:
    """Let a job run that is held or not due yet, whatever its limits, the jobs before it and its time."""
    await state.executor.ask(lambda operations: commands.run_now(operations, job_id, operations.statistics.now()))
    return answer({"id": job_id, "status": "pending"})


@router.post("/{job_id}/cancel", tags=["jobs"], response_model=models.Changed, responses=changing(404, 409))
async def cancel(state: TheState, job_id: models.JobId, body: NoBody = None) -> JSONResponse:
    """Cancel a held or pending job, or ask a running one to stop: it stays `running` until it has stopped."""

    def act(operations: Operations) -> Any:
        commands.check(operations, "cancel", [job_id])
        return operations.actions.cancel(job_id, operations.statistics.now())

    return answer({"id": job_id, "status": await state.executor.ask(act)})


def _summary(job: Job, doing: Doing | None) -> dict[str, Any]:
    """The row of a job; the progress of a running job comes from its worker."""
    known = {}
    if doing is not None and doing.progress is not None:
        known = {"progress": doing.progress, "progress_text": doing.text or None}
    return _row(job, models.JobSummary.model_fields) | known


def _document(found: Everything, *, show: bool) -> dict[str, Any]:
    """One job with everything; `show` says whether payload and result may be seen."""
    job, errors, runs = found.job, found.errors, found.runs
    return _summary(job, found.doing) | {
        "worker": found.worker,
        "host": found.host,
        "after": found.after,
        "payload": job.payload if show else None,
        "result": job.result if show else None,
        "redacted": not show,
        "meta": job.meta,
        "errors": [_row(error, models.Attempt.model_fields) for error in errors],
        "runs": [_row(run, models.Run.model_fields) for run in runs],
        "timeline": [{"at": step.at, "event": step.what} for step in steps(job, trials(runs, errors))],
    }


def _row(row: Job | Attempt | Run, names: Iterable[str]) -> dict[str, Any]:
    """These fields of a row. Infinite numbers become None, except in columns that may hold text."""
    stored = _STORED if isinstance(row, Job) else frozenset()
    return {name: getattr(row, name) if name in stored else finite(getattr(row, name)) for name in names}


async def _change(what: commands.Change, state: AppState, request: models.BulkRequest) -> JSONResponse:
    """Change the jobs of a snapshot, or those that match if they are no more than expected; otherwise say how many
    match, and keep them as a snapshot.
    """
    try:
        which = commands.meant(what, filter_of(request.filter, state.settings))
    except ConfigError as error:
        raise Refused(422, error.problems[0], field="filter.status") from None
    ids = None if request.snapshot is None else state.snapshots.take(what, request.snapshot)
    if ids is None:
        ids = await _matching(state.executor, which)
        if request.snapshot is not None or request.count is None or len(ids) > request.count:
            name = state.snapshots.keep(what, ids)
            if request.snapshot is None and request.count is None:
                return answer({"matching": len(ids), "changed": 0, "skipped": 0, "duplicates": 0, "snapshot": name})
            refusal = "the snapshot is unknown or has expired; nothing was changed"
            if request.snapshot is None:
                refusal = f"{len(ids)} jobs match now, more than the {request.count} expected; nothing was changed"
            hint = "check the jobs that match now, and send the new snapshot to change them"
            raise Refused(409, refusal, hint, matching=len(ids), snapshot=name)

    def change(operations: Operations, some: list[int]) -> tuple[int, int]:
        return commands.change(operations, what, some, operations.statistics.now())

    changed = duplicates = 0
    for start in range(0, len(ids), ROUND):
        done, held = await state.executor.ask(partial(change, some=ids[start : start + ROUND].tolist()))
        changed, duplicates = changed + done, duplicates + held
    skipped = len(ids) - changed - duplicates
    return answer({"matching": len(ids), "changed": changed, "skipped": skipped, "duplicates": duplicates})


async def _matching(executor: StoreExecutor, which: Filter) -> array[int]:
    """The ids of the matching jobs, newest first, no more than a snapshot holds."""

    def some(operations: Operations, before: int | None, limit: int) -> tuple[list[int], int | None]:
        return operations.jobs.some_ids(which, before=before, limit=limit)

    found: array[int] = array("q")
    before: int | None = None
    while len(found) < MOST_IDS:
        ids, before = await executor.ask(partial(some, before=before, limit=min(ROUND * 10, MOST_IDS - len(found))))
        found.extend(ids)
        if before is None:
            break
    return found
