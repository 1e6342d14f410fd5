"""The overview page: pools, charts, and current problems."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request
from fastapi.responses import HTMLResponse

from supervisor.admin.chart_data import PERIODS, ChartData, Series
from supervisor.admin.pages import history as history_page
from supervisor.admin.pages import route
from supervisor.admin.state import TheState
from supervisor.domain import history
from supervisor.ops.diagnosis import diagnose
from supervisor.ops.views import Overview, PoolView, largest

DENSE = 6  # pools from which on they are lines of a table, above the charts

router = route.router()


@dataclass(frozen=True, slots=True)
class PoolCard:
    """One pool with data of its workers and types: `sums` and `failures` of the last hour, with the current minute;
    `runs` as in the charts, without it. The history knows types, not pools.
    """

    view: PoolView
    busy: int
    due: int  # includes jobs of paused types, which the pool itself does not count
    oldest: float | None
    sums: history.Hour
    runs: Series
    total: int  # of these runs
    failures: int
    shared: bool  # `sums` and `failures` are empty, because other pools run jobs of its types too


@router.get("/")
async def overview(request: Request, state: TheState) -> HTMLResponse:
    shown = await state.watch.overview()
    chosen = history_page.chosen(request)
    data = await state.watch.chart_data(PERIODS[chosen], shown.time)
    return await route.page(
        request,
        "overview.html",
        shown,
        total=shown.last_hour,
        data=data,
        periods=history_page.choice("/", chosen),
        chosen=chosen,
        findings=diagnose(shown),
        pools=[pool_card(pool, shown, data) for pool in shown.pools],
        dense=len(shown.pools) >= DENSE,
        oldest=largest(view.oldest_age for view in shown.types),
    )


def pool_card(pool: PoolView, shown: Overview, data: ChartData) -> PoolCard:
    own = [worker for worker in shown.workers if (worker.pool, worker.home) == (pool.name, pool.home)]
    kept = [view for view in shown.types if view.type in pool.paused]
    others = {type_ for other in shown.pools if other.name != pool.name for type_ in other.types}
    shared = not others.isdisjoint(pool.types)
    known = () if shared else pool.types
    return PoolCard(
        view=pool,
        busy=sum(worker.state == "busy" for worker in own),
        due=pool.due + sum(view.due for view in kept),
        oldest=largest((pool.oldest_age, *(view.oldest_age for view in kept))),
        sums=history.combined(view.last_hour for view in shown.types if view.type in known),
        runs=data.runs_of(pool.types),
        total=data.sums(pool.types).runs,
        failures=sum(shown.failures_last_hour.get(type_, 0) for type_ in known),
        shared=shared,
    )
