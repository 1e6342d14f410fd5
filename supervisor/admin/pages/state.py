"""The overview with its charts and current problems; histories, failures by cause, workers, schedules."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from supervisor.admin import formatting
from supervisor.admin.charts import PERIODS, ChartData
from supervisor.admin.pages.jobs import JobQueryForm
from supervisor.admin.rendering import page
from supervisor.admin.state import TheState
from supervisor.domain import history
from supervisor.domain.job import Status
from supervisor.domain.text import seconds
from supervisor.ops.diagnosis import diagnose
from supervisor.ops.views import MOST_SCHEDULES, MOST_TYPES, Overview, PoolView, largest
from supervisor.store.base import ErrorGroup

DENSE = 6  # pools from which on they are lines of a table, above the charts
SPANS = {"1h": "last hour", "1d": "last day", "7d": "last week", "30d": "last 30 days"}
MOST = 100  # groups of failures on a page
STANDING = (Status.FAILED, Status.QUARANTINED)
LATE_BEAT = 10.0  # seconds; workers send a heartbeat every second

router = APIRouter(include_in_schema=False)


@router.get("/")
async def overview(request: Request, state: TheState, since: str = "") -> HTMLResponse:
    shown = await state.watch.overview()
    chosen = since if since in PERIODS else next(iter(PERIODS))
    data = await state.watch.chart_data(PERIODS[chosen], shown.time)
    return await page(
        request,
        "overview.html",
        shown,
        total=shown.last_hour,
        data=data,
        chosen=chosen,
        findings=diagnose(shown),
        pools=[_pool_card(pool, shown, data) for pool in shown.pools],
        dense=len(shown.pools) >= DENSE,
        oldest=largest(view.oldest_age for view in shown.types),
    )


def _pool_card(pool: PoolView, shown: Overview, data: ChartData) -> dict[str, Any]:
    """One pool with data of its workers and types: `sums` and `failures` of the last hour, with the current minute;
    `runs` as in the charts, without it. The history knows types, not pools.
    """
    place = pool.name, pool.supervisor, pool.host  # on several hosts, supervisors may have the same pid
    own = [worker for worker in shown.workers if (worker.pool, worker.supervisor, worker.host) == place]
    kept = [view for view in shown.types if view.type in pool.paused]
    others = {type_ for other in shown.pools if other.name != pool.name for type_ in other.types}
    shared = not others.isdisjoint(pool.types)  # `sums` and `failures` are not known then
    known = () if shared else pool.types
    return {
        "view": pool,
        "busy": sum(worker.state == "busy" for worker in own),
        "due": pool.due + sum(view.due for view in kept),  # the pool itself does not count jobs of paused types
        "oldest": largest((pool.oldest_age, *(view.oldest_age for view in kept))),
        "sums": history.combined(view.last_hour for view in shown.types if view.type in known),
        "runs": data.runs_of(pool.types),
        "failures": sum(shown.failures_last_hour.get(type_, 0) for type_ in known),
        "shared": shared,
    }


@router.get("/history")
async def history_page(request: Request, state: TheState, since: str = "") -> HTMLResponse:
    shown = await state.watch.overview()
    chosen = since if since in PERIODS else next(iter(PERIODS))
    types = tuple(dict.fromkeys(request.query_params.getlist("type")))[:MOST_TYPES]
    data = await state.watch.chart_data(PERIODS[chosen], shown.time)
    return await page(
        request,
        "history.html",
        shown,
        types=types,
        data=data.of(types) if types else data,
        chosen=chosen,
    )


@router.get("/failures")
async def failures(request: Request, state: TheState, since: str = "") -> HTMLResponse:
    shown = await state.watch.overview()
    chosen = since if since in SPANS else "1d"
    first = shown.time - seconds(chosen)
    groups = await state.executor.ask(lambda operations: operations.statistics.error_groups(first, MOST))
    return await page(
        request,
        "failures.html",
        shown,
        causes=[_cause(group, shown.time) for group in groups],
        chosen=chosen,
        spans=SPANS,
        full=len(groups) == MOST,
    )


def _cause(group: ErrorGroup, now: float) -> dict[str, Any]:
    """One group with the address of its jobs, and the API filter for them."""
    query = JobQueryForm(status=STANDING, type=(group.type,), error=formatting.fragment(group.message))
    return {"group": group, "address": query.address(), "which": query.as_filter(now, STANDING)}


@router.get("/workers")
async def workers(request: Request, state: TheState) -> HTMLResponse:
    return await page(request, "workers.html", late_beat=LATE_BEAT)


@router.get("/schedules")
async def schedules(request: Request, state: TheState) -> HTMLResponse:
    planned = await state.executor.ask(lambda operations: operations.schedules.planned())
    shown = await state.watch.overview()
    late = {view.name for view in shown.schedules if view.unfired}
    return await page(request, "schedules.html", shown, schedules=planned[:MOST_SCHEDULES], late=late)
