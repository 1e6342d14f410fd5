"""Pools, types and schedules: show, scale, pause, run now."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Path
from pydantic import BaseModel
from starlette.responses import JSONResponse

from supervisor.admin.answers import answer, changing, reading
from supervisor.admin.api import models
from supervisor.admin.state import TheState
from supervisor.ops import commands
from supervisor.ops.supervisors import types_taken
from supervisor.ops.views import PoolView, ScheduleView, SupervisorView, TypeView
from supervisor.store.base import GoneView, Operations

router = APIRouter(prefix="/api/admin", tags=["pools and types"])
schedules = APIRouter(prefix="/api/admin/schedules", tags=["schedules"])


class Pools(BaseModel):
    """The pools of every supervisor of the database."""

    supervisors: list[SupervisorView]
    pools: list[PoolView]
    gone: list[GoneView]


class Types(BaseModel):
    types: list[TypeView]
    unhandled: list[str]


@router.get("/pools", response_model=Pools, responses=reading())
async def list_pools(state: TheState) -> JSONResponse:
    """List pools: size, target and reason, due jobs, oldest due job, rate, problems."""
    seen = await state.watch.overview()
    return answer({"supervisors": seen.supervisors, "pools": seen.pools, "gone": seen.gone})


@router.put("/pools/{name}", response_model=models.PoolAnswer, responses=changing(404))
async def change_pool(
    state: TheState, name: Annotated[str, Path(min_length=1, max_length=100)], change: models.PoolChange
) -> JSONResponse:
    """Set a pool's number of workers, also on one host alone, or pause or resume all its types. Takes effect within a
    second.
    """

    def act(operations: Operations) -> dict[str, Any]:
        now = operations.statistics.now()
        given = change.model_fields_set
        if "paused" in given:
            commands.check_scale(operations, name, change.workers, state.pools)
            commands.pause_pool(operations, name, change.paused, now)
        if "workers" in given:
            commands.scale(operations, name, change.workers, state.pools, now, host=change.host)
        controls = operations.controls.current()
        types = types_taken(operations, name)
        return {
            "name": name,
            "workers": controls.size_on(name, change.host) if change.host else controls.sizes.get(name),
            "types": types,
            "paused": [type_ for type_ in types if type_ in controls.paused],
        } | ({"host": change.host} if change.host else {})

    return answer(await state.executor.ask(act))


@router.get("/types", response_model=Types, responses=reading())
async def list_types(state: TheState) -> JSONResponse:
    """List types: jobs by state, whether paused, due jobs, failures, run times."""
    seen = await state.watch.overview()
    return answer({"types": seen.types, "unhandled": seen.unhandled})


@router.put("/types/{type:path}", response_model=models.TypeAnswer, responses=changing(404))
async def change_type(
    state: TheState, type: Annotated[models.JobType, Path()], change: models.TypeChange
) -> JSONResponse:
    """Pause or resume a type. Takes effect immediately."""

    def act(operations: Operations) -> bool:
        return commands.pause(operations, type, change.paused, operations.statistics.now(), force=change.force)

    changed = await state.executor.ask(act)
    return answer({"type": type, "paused": change.paused, "changed": changed})


Name = Annotated[str, Path(min_length=1, max_length=100, description="The schedule's name.")]


class Schedules(BaseModel):
    schedules: list[ScheduleView]


@schedules.get("", response_model=Schedules, responses=reading())
async def list_schedules(state: TheState) -> JSONResponse:
    """List schedules: when each fires next, when it last did, and whether it is paused."""
    return answer({"schedules": (await state.watch.overview()).schedules})


@schedules.put("/{name}", response_model=models.ScheduleAnswer, responses=changing(404))
async def change_schedule(state: TheState, name: Name, change: models.ScheduleChange) -> JSONResponse:
    """Pause or resume a schedule. Missed times of a resumed one are handled according to its `misfire`."""
    changed = await state.executor.ask(
        lambda operations: commands.pause_schedule(operations, name, change.paused, operations.statistics.now())
    )
    return answer({"name": name, "paused": change.paused, "changed": changed})


@schedules.post(
    "/{name}/run",
    response_model=models.Enqueued,
    status_code=201,
    responses=changing(404, 409),
)
async def run_schedule(
    state: TheState, name: Name, body: Annotated[models.Empty | None, Body()] = None
) -> JSONResponse:
    """Enqueue the schedule's job now, also while it is paused. Its next time stays."""
    job_id = await state.executor.ask(
        lambda operations: commands.run_schedule(operations, name, operations.statistics.now())
    )
    return answer({"id": job_id, "duplicate": False}, 201, {"Location": f"/api/admin/jobs/{job_id}"})
