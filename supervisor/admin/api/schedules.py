"""Schedules: when each fires, pause and resume, run now."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Path
from pydantic import BaseModel
from starlette.responses import JSONResponse

from supervisor.admin.api import models
from supervisor.admin.api.documents import answer
from supervisor.admin.api.problems import changing, reading
from supervisor.admin.state import TheState
from supervisor.ops import commands
from supervisor.ops.views import ScheduleView

router = APIRouter(prefix="/api/admin/schedules", tags=["schedules"])

Name = Annotated[str, Path(min_length=1, max_length=100, description="The schedule's name.")]


class Schedules(BaseModel):
    schedules: list[ScheduleView]


@router.get("", response_model=Schedules, responses=reading())
async def list_schedules(state: TheState) -> JSONResponse:
    """List schedules: when each fires next, when it last did, and whether it is paused."""
    return answer({"schedules": (await state.watch.overview()).schedules})


@router.put("/{name}", response_model=models.ScheduleAnswer, responses=changing(404))
async def change_schedule(state: TheState, name: Name, change: models.ScheduleChange) -> JSONResponse:
    """Pause or resume a schedule. Missed times of a resumed one are handled according to its `misfire`."""
    changed = await state.executor.ask(
        lambda operations: commands.pause_schedule(operations, name, change.paused, operations.statistics.now())
    )
    return answer({"name": name, "paused": change.paused, "changed": changed})


@router.post("/{name}/run", response_model=models.Enqueued, status_code=201, responses=changing(404, 409))
async def run_schedule(
    state: TheState, name: Name, body: Annotated[models.Empty | None, Body()] = None
) -> JSONResponse:
    """Enqueue the schedule's job now, also while it is paused. Its next time stays."""
    job_id = await state.executor.ask(
        lambda operations: commands.run_schedule(operations, name, operations.statistics.now())
    )
    return answer({"id": job_id, "duplicate": False}, 201, {"Location": f"/api/admin/jobs/{job_id}"})
