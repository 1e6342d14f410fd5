"""The overview page: pools, the last hour, and current problems."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request
from fastapi.responses import HTMLResponse

from supervisor.admin.hour import Hour, Series
from supervisor.admin.pages import route
from supervisor.admin.state import TheState
from supervisor.domain import history
from supervisor.domain.history import KEPT, minute_of
from supervisor.ops.diagnosis import diagnose
from supervisor.ops.views import Overview, PoolView, largest

DENSE = 6  # pools from which on they are lines of a table, above the charts

router = route.router()


@dataclass(frozen=True, slots=True)
class PoolCard:
    """One pool with data of its workers and types."""

    view: PoolView
    busy: int
    due: int  # includes jobs of paused types, which the pool itself does not count
    oldest: float | None
    sums: history.Hour
    runs: Series
    failures: int


@router.get("/")
async def overview(request: Request, state: TheState) -> HTMLResponse:
    shown = await state.watch.overview()
    hour = Hour(
        await state.executor.ask(lambda operations: operations.history.minutes(minute_of(shown.time) - KEPT)),
        shown.time,
    )
    return await route.page(
        request,
        "overview.html",
        shown,
        hour=hour,
        findings=diagnose(shown),
        pools=[pool_card(pool, shown, hour) for pool in shown.pools],
        dense=len(shown.pools) >= DENSE,
        oldest=largest(view.oldest_age for view in shown.types),
    )


def pool_card(pool: PoolView, shown: Overview, hour: Hour) -> PoolCard:
    own = [worker for worker in shown.workers if (worker.pool, worker.supervisor) == (pool.name, pool.supervisor)]
    kept = [view for view in shown.types if view.type in pool.paused]
    return PoolCard(
        view=pool,
        busy=sum(worker.state == "busy" for worker in own),
        due=pool.due + sum(view.due for view in kept),
        oldest=largest((pool.oldest_age, *(view.oldest_age for view in kept))),
        sums=hour.sums(pool.types),
        runs=hour.runs_of(pool.types),
        failures=sum(shown.failures_last_hour.get(type_, 0) for type_ in pool.types),
    )
