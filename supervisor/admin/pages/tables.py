"""Workers and schedules, one table each."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import HTMLResponse

from supervisor.admin.pages import route
from supervisor.admin.state import TheState
from supervisor.ops.views import MOST_SCHEDULES
from supervisor.store.base import Planned

LATE_BEAT = 10.0  # seconds; workers send a heartbeat every second

router = route.router()


@router.get("/workers")
async def workers(request: Request, state: TheState) -> HTMLResponse:
    return await route.page(request, "workers.html", late_beat=LATE_BEAT)


@router.get("/schedules")
async def schedules(request: Request, state: TheState) -> HTMLResponse:
    planned: list[Planned] = await state.executor.ask(lambda operations: operations.schedules.planned())
    return await route.page(
        request, "schedules.html", schedules=[route.fitting(one) for one in planned[:MOST_SCHEDULES]]
    )
