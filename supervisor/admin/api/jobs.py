"""Jobs: list, enqueue, show, retry, cancel and delete.

Any program may have written their rows, so only the table's constraints are assumed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from starlette.responses import JSONResponse

from supervisor.admin.api import models
from supervisor.admin.api.answers import Hidden, answer, changing, reading
from supervisor.admin.state import TheState
from supervisor.config.settings import AdminSettings
from supervisor.domain.intake import new_job, payload_of
from supervisor.domain.job import Job, Status
from supervisor.ops import commands
from supervisor.ops.job_details import Doing, Everything, everything, running, steps, trials
from supervisor.ops.views import finite
from supervisor.store.base import Filter, Operations, Page

router = APIRouter(prefix="/api/admin/jobs", tags=["jobs"])

_STORED = frozenset({"created_at", "updated_at"})  # columns of jobs that may hold a text as well
NoBody = Annotated[models.Empty | None, Body()]
RetryBody = Annotated[models.Retry | None, Body()]


def filter_of(which: models.JobFilter, settings: AdminSettings) -> Filter:
    """Raises Hidden for a search in what may not be seen."""
    if which.text and not settings.show_payloads:
        raise Hidden(
            "payloads are hidden, so `text` cannot be used; `error` can, or set show_payloads = true in [admin]"
        )

    return Filter(
        statuses=tuple(dict.fromkeys(which.status)),
        types=tuple(dict.fromkeys(which.type)),
        error=which.error,
        text=which.text,
        ids=tuple(which.id),
        unique_key=which.key,
        requires=which.requires,
        priority=which.priority,
        tags=tuple(which.tag),
        finished_after=which.finished_after,
        finished_before=which.finished_before,
    )


@router.get("", response_model=models.JobPage, responses=reading(403, 422))
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
    response_model=models.Enqueued,
    status_code=201,
    responses={200: {"model": models.Enqueued, "description": "An unfinished job has this key."}, **changing(409)},
)
async def enqueue(state: TheState, job: models.NewJob) -> JSONResponse:
    """Enqueue a job. When the answer comes, the job survives a power loss."""
    wanted = new_job(
        job.type,
        job.payload,
        priority=job.priority,
        delay=job.delay,
        at=job.at,
        requires=job.requires,
        max_attempts=job.max_attempts,
        unique_key=job.unique_key,
        meta=job.meta,
    )
    job_id, new = await state.requests.insert(wanted)
    location = {"Location": f"/api/admin/jobs/{job_id}"}
    return answer({"id": job_id, "duplicate": not new}, 201 if new else 200, location)


@router.get("/{job_id}", response_model=models.JobDocument, responses=reading(404, 422))
async def show(state: TheState, job_id: models.JobId) -> JSONResponse:
    """One job with its errors, runs and timeline."""
    found = await state.executor.ask(lambda operations: everything(operations, job_id))
    return answer(_document(found, show=state.settings.show_payloads))


@router.delete("/{job_id}", response_model=models.Changed, responses=changing(404, 409))
async def delete(state: TheState, job_id: models.JobId) -> JSONResponse:
    """Delete a finished job with its errors and runs."""

    def act(operations: Operations) -> None:
        commands.check(operations, "delete", [job_id])
        operations.actions.delete([job_id])

    await state.executor.ask(act)
    return answer({"id": job_id, "status": "deleted"})


@router.post("/{job_id}/retry", response_model=models.Changed, responses=changing(404, 409))
async def retry(state: TheState, job_id: models.JobId, body: RetryBody = None) -> JSONResponse:
    """Return a failed, quarantined or cancelled job to pending, due now, with its counters reset.

    With `payload`, it runs with that; with `done`, a job that has succeeded runs again.
    """
    wanted = body or models.Retry()
    payload = payload_of(wanted.payload) if "payload" in wanted.model_fields_set else None

    def act(operations: Operations) -> None:
        commands.rerun(operations, job_id, operations.statistics.now(), payload=payload, done=wanted.done)

    await state.executor.ask(act)
    return answer({"id": job_id, "status": "pending"})


@router.post("/{job_id}/cancel", response_model=models.Changed, responses=changing(404, 409))
async def cancel(state: TheState, job_id: models.JobId, body: NoBody = None) -> JSONResponse:
    """Cancel a pending job, or ask a running one to stop: it stays `running` until it has stopped."""

    def act(operations: Operations) -> Any:
        commands.check(operations, "cancel", [job_id])
        return operations.actions.cancel(job_id, operations.statistics.now())

    return answer({"id": job_id, "status": await state.executor.ask(act)})


def _summary(job: Job, doing: Doing | None) -> dict[str, Any]:
    """The row of a job; the progress of a running job comes from its worker."""
    known = {}
    if doing is not None and doing.progress is not None:
        known = {"progress": doing.progress, "progress_text": doing.text or None}
    return _row(job, models.JobSummary.model_fields, _STORED) | known


def _document(found: Everything, *, show: bool) -> dict[str, Any]:
    """One job with everything; `show` says whether payload and result may be seen."""
    job, errors, runs = found.job, found.errors, found.runs
    return _summary(job, found.doing) | {
        "worker": found.worker,
        "host": found.host,
        "payload": job.payload if show else None,
        "result": job.result if show else None,
        "redacted": not show,
        "meta": job.meta,
        "errors": [_row(error, models.Attempt.model_fields) for error in errors],
        "runs": [_row(run, models.Run.model_fields) for run in runs],
        "timeline": [{"at": step.at, "event": step.what} for step in steps(job, trials(runs, errors))],
    }


def _row(row: Any, names: Iterable[str], stored: frozenset[str] = frozenset()) -> dict[str, Any]:
    """These fields of a row. Infinite numbers become None, except in columns that may hold text."""
    return {name: getattr(row, name) if name in stored else finite(getattr(row, name)) for name in names}
