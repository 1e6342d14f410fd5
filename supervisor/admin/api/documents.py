"""Rows as answers. Any program may have written them, so only the table's constraints are assumed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.responses import JSONResponse

from supervisor.admin.api.models import Attempt as AttemptModel
from supervisor.admin.api.models import JobSummary
from supervisor.admin.api.models import Run as RunModel
from supervisor.domain.job import Job
from supervisor.domain.text import json_safe
from supervisor.ops.job_details import Doing, Everything, steps, trials
from supervisor.ops.views import finite

_STORED = frozenset({"created_at", "updated_at"})  # columns of jobs that may hold a text as well


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> JSONResponse:
    """A value as JSON that every parser accepts."""
    return JSONResponse(json_safe(value), status, headers)


def summary(job: Job, doing: Doing | None) -> dict[str, Any]:
    """The row of a job; the progress of a running job comes from its worker."""
    known = {}
    if doing is not None and doing.progress is not None:
        known = {"progress": doing.progress, "progress_text": doing.text or None}
    return _row(job, JobSummary.model_fields, _STORED) | known


def document(found: Everything, *, show: bool) -> dict[str, Any]:
    """One job with everything; `show` says whether payload and result may be seen."""
    job, errors, runs = found.job, found.errors, found.runs
    return summary(job, found.doing) | {
        "worker": found.worker,
        "host": found.host,
        "payload": job.payload if show else None,
        "result": job.result if show else None,
        "redacted": not show,
        "meta": job.meta,
        "errors": [_row(error, AttemptModel.model_fields) for error in errors],
        "runs": [_row(run, RunModel.model_fields) for run in runs],
        "timeline": [{"at": step.at, "event": step.what} for step in steps(job, trials(runs, errors))],
    }


def _row(row: Any, names: Iterable[str], stored: frozenset[str] = frozenset()) -> dict[str, Any]:
    """These fields of a row. Infinite numbers become None, except in columns that may hold text."""
    return {name: getattr(row, name) if name in stored else finite(getattr(row, name)) for name in names}
