"""The jobs that an address means, a page at a time, and one job with all that is known of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException, Request
from fastapi.responses import HTMLResponse
from starlette.responses import RedirectResponse, Response

from supervisor.admin.office import TheOffice
from supervisor.admin.pages import asked, route
from supervisor.domain.job import Attempt, Job, Run, Status
from supervisor.operating import CANCELLABLE, DELETABLE, RETRIABLE
from supervisor.status import Overview, WorkerView
from supervisor.store.base import Operations, Page

PAGE = 50  # jobs on a page
KEPT = ("payload", "result", "last_error")  # columns of jobs that may be long
MOST_ATTEMPTS = 50  # shown of one job; a poisoned one may have thousands

router = route.router()


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a job: what it used, and what went wrong. One of the two may be missing."""

    run: Run | None
    error: Attempt | None

    @property
    def attempt(self) -> int:
        return self.run.attempt if self.run is not None else self.error.attempt if self.error is not None else 0

    @property
    def outcome(self) -> str:
        return self.error.kind if self.error is not None else self.run.outcome if self.run is not None else ""

    @property
    def worker(self) -> str | None:
        return (self.run and self.run.worker) or (self.error and self.error.worker) or None

    @property
    def began(self) -> float | None:
        """Unix seconds, never after its end; of a run without a row of its own, its end less its length."""
        if self.error is None:
            return None if self.run is None else self.run.started_at
        ended = self.error.created_at
        return ended - (self.error.duration or 0.0) if self.run is None else min(self.run.started_at, ended)

    @property
    def duration(self) -> float | None:
        known = self.run.duration if self.run is not None else None
        return known if known is not None or self.error is None else self.error.duration

    @property
    def peak_memory(self) -> int | None:
        known = self.run.peak_memory if self.run is not None else None
        return known if known is not None or self.error is None else self.error.peak_memory


@dataclass(frozen=True, slots=True)
class Step:
    """A moment in the life of a job: `tone` is a state, or empty. `at` is Unix seconds."""

    at: float
    what: str
    tone: str = ""


@router.get("/jobs")
async def jobs(request: Request, office: TheOffice) -> Response:
    wanted_id = request.query_params.get("id", "").strip().lstrip("#")
    if wanted_id.isdecimal() and len(wanted_id) < 19:
        return RedirectResponse(f"/jobs/{int(wanted_id)}", status_code=303)
    shown = await office.watch.overview()
    query = asked.read(request.query_params)
    found = (
        Page([], None)
        if query.problems
        else await office.desk.ask(lambda operations: _page(operations, query, shown.time))
    )
    return await route.page(
        request,
        "jobs.html",
        shown,
        asked=query,
        page=Page([route.fitting(job, *KEPT) for job in found.jobs], found.next),
        wanted_id=wanted_id,
        bulk={} if query.problems else bulk(query, shown.time),
        states=list(Status),
        counts=counts(query, shown),
        finished=asked.FINISHED,
        running={worker.job: worker for worker in shown.workers if worker.job},
    )


def _page(operations: Operations, query: asked.Asked, now: float) -> Page:
    """A look goes through a bounded number of rows; an empty page is looked beyond a few times."""
    found = operations.page(query.which(now), before=query.before, limit=PAGE)
    for _ in range(4):
        if found.jobs or found.next is None:
            break
        found = operations.page(query.which(now), before=found.next, limit=PAGE)
    return found


def bulk(query: asked.Asked, now: float) -> dict[str, dict[str, Any]]:
    """What may be done to all jobs that are meant, each with the API's filter; only to some states, each."""
    deeds = {"retry": RETRIABLE, "cancel": CANCELLABLE, "delete": DELETABLE}
    chosen = {
        name: [s for s in allowed if not query.statuses or s in query.statuses] for name, allowed in deeds.items()
    }
    return {name: query.as_filter(now, statuses) for name, statuses in chosen.items() if statuses}


def counts(query: asked.Asked, shown: Overview) -> dict[str, int] | None:
    """How many jobs each state has, of the types that are asked for. Other filters would have to look at all."""
    if query.address(statuses=(), types=()) != "/jobs":
        return None
    if not query.types:
        return shown.jobs
    found: Counter[str] = Counter()
    for view in shown.types:
        found.update(view.jobs if view.type in query.types else {})
    return {status.value: found[status.value] for status in Status}


@router.get("/jobs/{job_id}")
async def job(request: Request, office: TheOffice, job_id: int) -> HTMLResponse:
    found, errors, runs = await office.desk.ask(lambda operations: _everything(operations, job_id))
    found = route.fitting(found, *KEPT)
    errors = [route.fitting(error, "message", "traceback", "stderr") for error in errors]
    runs = [route.fitting(run, "log") for run in runs]
    shown = await office.watch.overview()
    tried = trials(runs, errors)
    return await route.page(
        request,
        "job.html",
        shown,
        job=found,
        trials=tried[:MOST_ATTEMPTS],
        hidden=max(0, len(tried) - MOST_ATTEMPTS),
        steps=steps(found, tried[:MOST_ATTEMPTS]),
        worker=next((worker for worker in shown.workers if worker.job == found.id), None),
        retriable=found.status in RETRIABLE,
        cancellable=found.status in CANCELLABLE and not found.cancel_requested_at,
    )


def _everything(operations: Operations, job_id: int) -> tuple[Job, list[Attempt], list[Run]]:
    found = operations.job(job_id) if abs(job_id) < 2**62 else None
    if found is None:
        raise HTTPException(404, f"there is no job {job_id}; finished ones are deleted after a while")
    return found, operations.attempts(job_id), operations.runs(job_id)


def trials(runs: Iterable[Run], errors: Iterable[Attempt]) -> list[Trial]:
    """The runs of a job, the latest first. A run and an error belong together if attempt, kind and worker agree."""
    left = list(errors)
    found = []
    for run in runs:
        match = next((e for e in left if (e.attempt, e.kind) == (run.attempt, run.outcome)), None)
        if match is not None:
            left.remove(match)
        found.append(Trial(run, match))
    found += [Trial(None, error) for error in left]
    return sorted(found, key=lambda trial: trial.began or 0.0, reverse=True)


def steps(found: Job, tried: Iterable[Trial]) -> list[Step]:
    """The life of a job in its order."""
    moments = [
        (found.created_at, "created", ""),
        (found.scheduled_at if _waited(found) else None, "due", ""),
        (found.cancel_requested_at, "asked to stop", "cancelled"),
    ]
    for trial in tried:
        began = trial.began
        moments.append(
            (began, f"attempt {trial.attempt} began" + (f" in {trial.worker}" if trial.worker else ""), "running")
        )
        if trial.error is not None:
            moments.append((trial.error.created_at, f"attempt {trial.attempt} ended: {trial.error.kind}", "failed"))
    if found.status is Status.RUNNING:
        moments.append((found.started_at, "running now", "running"))
    moments.append((found.completed_at, found.status.value, found.status.value))
    known = [
        Step(float(at), what, tone) for at, what, tone in moments if isinstance(at, (int, float)) and math.isfinite(at)
    ]
    return sorted(known, key=lambda step: step.at)


def _waited(found: Job) -> bool:
    """Whether its being due is a moment of its own."""
    created = found.created_at
    return not isinstance(created, (int, float)) or found.scheduled_at > created + 0.5


def progress(found: Job, worker: WorkerView | None) -> float | None:
    """How far a job is; its worker knows best."""
    return worker.progress if worker is not None and worker.progress is not None else found.progress
