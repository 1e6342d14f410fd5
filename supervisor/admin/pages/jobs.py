"""The list of jobs, one page at a time, with the filters in its address; the page of one job."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import QueryParams
from starlette.responses import HTMLResponse, RedirectResponse, Response

from supervisor.admin.api import models
from supervisor.admin.rendering import page
from supervisor.admin.state import TheState
from supervisor.domain.enqueueing import OPTIONS
from supervisor.domain.errors import Conflict
from supervisor.domain.job import Job, Status
from supervisor.domain.text import seconds
from supervisor.domain.values import moment
from supervisor.ops.commands import CANCELLABLE, DELETABLE, RETRIABLE
from supervisor.ops.job_details import durations, everything, steps, trials
from supervisor.ops.serving import why_of
from supervisor.store.base import MOST_BATCHES, Filter, Operations, Page, Sort

PAGE = 50  # jobs on a page
SORTED = 200  # jobs of another order, which has no further pages
COLUMNS = {"id": "Job", "status": "State", "type": "Type", "attempts": "Attempts", "changed": "Last change"}
RERUNNABLE = (*RETRIABLE, Status.DONE)
WAITING = (Status.PENDING, Status.HELD, Status.CANCELLED)  # nothing else says why such a job does not run
ALLOWED = {"retry": RETRIABLE, "cancel": CANCELLABLE, "delete": DELETABLE}
# For selected jobs; the page's script puts their ids in place of 0, which no job has.
EACH = {name: {"status": [status.value for status in allowed], "id": [0]} for name, allowed in ALLOWED.items()}
MOST_EDITABLE = 90_000  # characters of a payload in a form, and of one that can be copied
MOST_ATTEMPTS = 50  # shown of one job; a job that keeps failing may have thousands

router = APIRouter(include_in_schema=False)
Number = Annotated[int | None, Query(ge=1, le=models.LARGEST_ID)]


FINISHED = {
    "15m": "in the last 15 min",
    "1h": "in the last hour",
    "1d": "in the last day",
    "7d": "in the last week",
    "older-1d": "over a day ago",
    "older-7d": "over a week ago",
    "older-30d": "over 30 days ago",
}
"""The choices of the form; any other duration can be written into the address."""

_OLDER = "older-"
_MOST = 2**62  # larger ids and priorities are invalid, and SQLite could not store them
_Number = Annotated[int, Field(gt=-_MOST, lt=_MOST)]


def _duration(text: str) -> str:
    seconds(text.removeprefix(_OLDER))
    return text


class JobQueryForm(BaseModel):
    """The requested filters, by their names in the address. `problems` lists what could not be parsed; then no job is
    selected.
    """

    model_config = ConfigDict(frozen=True)

    status: tuple[Status, ...] = ()
    type: tuple[str, ...] = ()
    text: str = ""
    error: str = ""
    key: str = ""
    requires: str = ""
    finished: Annotated[str, AfterValidator(_duration)] = ""
    priority: _Number | None = None
    batch: Annotated[int, Field(gt=0, lt=_MOST)] | None = None
    sort: Annotated[str, Field(pattern=f"^-?({'|'.join(Sort)})$")] = ""  # descending with a minus sign
    before: _Number | None = None
    problems: tuple[str, ...] = ()

    @property
    def is_narrow(self) -> bool:
        """Whether it filters by anything other than the state."""
        return self.model_copy(update={"status": (), "before": None, "sort": ""}) != JobQueryForm()

    @property
    def by(self) -> Sort | None:
        """What the list is sorted by; None: the latest jobs first."""
        return Sort(self.sort.removeprefix("-")) if self.sort else None

    @property
    def descending(self) -> bool:
        return self.sort.startswith("-")

    def sorted_by(self, name: str) -> str:
        """The address of the list sorted by a column; the other way round if it is sorted by that already."""
        ways = (name, f"-{name}") if name in (Sort.TYPE, Sort.STATUS) else (f"-{name}", name)
        return self.address(sort=ways[self.sort == ways[0]])

    def as_filter(self, now: float, statuses: Sequence[Status] | None = None) -> dict[str, Any]:
        """The same as a filter of the API; `statuses` are others, which allow an action."""
        given = self.model_dump(mode="json", include=set(models.JobFilter.model_fields), exclude_defaults=True)
        if statuses is not None:
            given["status"] = [status.value for status in statuses]
        if self.finished:
            name = "finished_before" if self.finished.startswith(_OLDER) else "finished_after"
            given[name] = now - seconds(self.finished.removeprefix(_OLDER))
        return given

    def which(self, now: float) -> Filter:
        given = self.as_filter(now) | {"status": self.status}
        return models.JobFilter.model_construct(**given).as_filter()

    def address(self, **changes: Any) -> str:
        """The address of this list with some fields changed; the page is the first unless `before` is given."""
        new = self.model_copy(update={"before": None} | changes)
        query = urlencode(new.model_dump(mode="json", exclude={"problems"}, exclude_defaults=True), doseq=True)
        return "/jobs" + (f"?{query}" if query else "")


def read(query: QueryParams, *, show_payloads: bool) -> JobQueryForm:
    """Parse the query of an address. Unknown and empty fields are ignored."""
    fields = JobQueryForm.model_fields.keys() - {"problems"}
    given: dict[str, Any] = {name: text for name in fields if (text := query.get(name, "").strip())}
    given["status"] = tuple(dict.fromkeys(filter(None, query.getlist("status"))))
    given["type"] = tuple(dict.fromkeys(filter(None, re.split(r"[,\s]+", " ".join(query.getlist("type"))))))
    problems = []
    if "text" in given and not show_payloads:
        problems.append("Payloads and results are hidden, so they cannot be searched.")
    try:
        JobQueryForm.model_validate(given)
    except ValidationError as error:
        for one in error.errors():
            problems.append(f"“{one['input']}” is not a valid {one['loc'][0]}.")
            given.pop(str(one["loc"][0]), None)
    return JobQueryForm(**given, problems=tuple(problems))


@router.get("/jobs")
async def jobs(request: Request, state: TheState) -> Response:
    wanted_id = request.query_params.get("id", "").strip().lstrip("#")
    if wanted_id.isdecimal() and len(wanted_id) < 19:
        return RedirectResponse(f"/jobs/{int(wanted_id)}", status_code=303)
    shown = await state.watch.overview()
    query = read(request.query_params, show_payloads=state.settings.show_payloads)
    found, took = await state.executor.ask(
        lambda operations: (some := _page(operations, query, shown.time), durations(operations, some.jobs))
    )
    return await page(
        request,
        "jobs.html",
        shown,
        asked=query,
        page=found,
        wanted_id=wanted_id,
        bulk={} if query.problems else bulk(query, shown.time),
        each=EACH,
        states=list(Status),
        columns=COLUMNS,
        counts=None if query.is_narrow else shown.jobs,
        finished=FINISHED,
        running={worker.job: worker for worker in shown.workers if worker.job},
        took=took,
    )


def _page(operations: Operations, query: JobQueryForm, now: float) -> Page:
    """One query reads a bounded number of rows; after an empty page, a few more queries are tried."""
    if query.problems:
        return Page([], None)
    if query.by is not None:
        return operations.jobs.arranged(
            query.which(now), by=query.by, descending=query.descending, before=query.before, limit=SORTED
        )
    found = Page([], query.before)
    for _ in range(5):
        found = operations.jobs.page(query.which(now), before=found.next, limit=PAGE)
        if found.jobs or found.next is None:
            break
    return found


def bulk(query: JobQueryForm, now: float) -> dict[str, dict[str, Any]]:
    """The actions possible for all matching jobs, each with its API filter, restricted to the states that allow it."""
    chosen = {name: [s for s in allowed if not query.status or s in query.status] for name, allowed in ALLOWED.items()}
    return {name: query.as_filter(now, statuses) for name, statuses in chosen.items() if statuses}


@router.get("/enqueue")
async def enqueue(
    request: Request, state: TheState, like: Number = None, retry: Number = None, type: str = ""
) -> HTMLResponse:
    """The form for a new job: empty, a copy of the job `like`, or the payload of `retry` to be changed."""
    number, show = retry or like, state.settings.show_payloads
    old = None
    if number is not None:
        old = (await state.executor.ask(lambda operations: everything(operations, number))).job
        if retry and not (old.status in RERUNNABLE and show):
            raise Conflict(f"job {old.id} cannot be changed and retried now")
    return await page(
        request,
        "enqueue.html",
        like=old,
        payload=_editable(old.payload if old is not None and show else {}),
        retried=bool(retry),
        type=type if old is None else old.type,
    )


def _editable(payload: Any) -> str | None:
    """A payload as JSON in lines; None if it is too long for a form."""
    text = json.dumps(payload, indent=2, ensure_ascii=False)
    return text if len(text) <= MOST_EDITABLE else None


@router.get("/jobs/{job_id}")
async def job(request: Request, state: TheState, job_id: models.JobId) -> HTMLResponse:
    known, why = await state.executor.ask(
        lambda operations: (known := everything(operations, job_id), why_of(operations, known.job))
    )
    found = known.job
    shown = await state.watch.overview()
    tried = trials(known.runs, known.errors)
    latest = tried[:MOST_ATTEMPTS]
    return await page(
        request,
        "job.html",
        shown,
        job=found,
        why=why if found.status in WAITING else [],
        trials=latest,
        hidden=max(0, len(tried) - MOST_ATTEMPTS),
        steps=steps(found, latest),
        worker=next((worker for worker in shown.workers if worker.job == found.id), None),
        of_type=next((view for view in shown.types if view.type == found.type), None),
        after=known.after,
        copies=_copies(found, show=state.settings.show_payloads),
        retriable=found.status in RETRIABLE,
        rerunnable=found.status in RERUNNABLE,
        cancellable=found.status in CANCELLABLE and not found.cancel_requested_at,
    )


@router.get("/batches")
async def batches(request: Request, state: TheState, before: Number = None, unfinished: bool = False) -> HTMLResponse:
    which = before or models.LARGEST_ID
    found = await state.executor.ask(lambda operations: operations.batches.latest(which, ended=not unfinished))
    full = len(found) == MOST_BATCHES
    return await page(request, "batches.html", batches=found, before=before, unfinished=unfinished, full=full)


@router.get("/batches/{batch_id}")
async def batch(request: Request, state: TheState, batch_id: models.BatchId) -> HTMLResponse:
    found = await state.executor.ask(lambda operations: operations.batches.get(batch_id))
    return await page(request, "batch.html", batch=found, states=list(Status))


def _copies(job: Job, *, show: bool) -> dict[str, str]:
    """What can be copied: with a `payload` that may be shown, commands that enqueue the same job again; otherwise, and
    with one that is too long, that show this one. The page's script appends its own origin and `path` to that of curl.
    """
    payload = json.dumps(job.payload, ensure_ascii=False) if show else ""
    request = 'curl --header "Authorization: Bearer $TOKEN"'
    if not payload or len(payload) > MOST_EDITABLE:
        command = f"supervisor jobs show {job.id}"
        return {"payload": "", "command": command, "curl": f"{request} ", "path": f"/api/admin/jobs/{job.id}"}
    kept = (name for name, option in OPTIONS.items() if name in Job.__slots__ and option.check is not moment)
    kept = (name for name in kept if name != "batch")  # that may have ended, or be gone
    settings = {name: getattr(job, name) for name in kept}
    given = {name: value for name, value in settings.items() if value not in (None, 0, "")}
    words = ["supervisor", "enqueue"]
    for name, value in given.items():
        text = json.dumps(value, ensure_ascii=False) if name == "meta" else str(value)
        words.append(f"--{name.replace('_', '-')}={text}")
    if job.type.startswith("-") or payload.startswith("-"):
        words.append("--")
    body = json.dumps({"type": job.type, "payload": job.payload} | given, ensure_ascii=False)
    return {
        "payload": payload,
        "command": shlex.join([*words, job.type, payload]),
        "curl": f"{request} --json {shlex.quote(body)} ",
        "path": "/api/admin/jobs",
    }
