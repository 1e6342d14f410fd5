"""Failed attempts, grouped by cause: one line per cause, however many jobs it affected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse

from supervisor.admin import formatting
from supervisor.admin.pages import job_query, route
from supervisor.admin.state import TheState
from supervisor.domain.job import Status
from supervisor.domain.text import seconds
from supervisor.store.base import ErrorGroup

SPANS = {"1h": "last hour", "1d": "last day", "7d": "last week", "30d": "last 30 days"}
MOST = 100  # groups on a page
STANDING = (Status.FAILED, Status.QUARANTINED)

router = route.router()


@dataclass(frozen=True, slots=True)
class Cause:
    """One group with the address of its jobs, and the API filter for them."""

    group: ErrorGroup
    address: str
    which: dict[str, Any]


@router.get("/failures")
async def failures(request: Request, state: TheState) -> HTMLResponse:
    shown = await state.watch.overview()
    chosen = request.query_params.get("since", "1d")
    chosen = chosen if chosen in SPANS else "1d"
    since = shown.time - seconds(chosen)
    groups = await state.executor.ask(lambda operations: operations.statistics.error_groups(since, MOST))
    return await route.page(
        request,
        "failures.html",
        shown,
        causes=[cause(route.fitting(group, "message"), shown.time) for group in groups],
        chosen=chosen,
        spans=SPANS,
        full=len(groups) == MOST,
    )


def cause(group: ErrorGroup, now: float) -> Cause:
    query = job_query.JobQueryForm(statuses=STANDING, types=(group.type,), error=formatting.fragment(group.message))
    return Cause(group, query.address(), query.as_filter(now, STANDING))
