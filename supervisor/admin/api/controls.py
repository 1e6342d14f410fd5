"""Pools, types and schedules: scale, pause, limit, run now."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Path
from starlette.responses import JSONResponse

from supervisor.admin.answers import answer, changing, reading
from supervisor.admin.api import models
from supervisor.admin.state import TheState
from supervisor.ops import commands
from supervisor.ops.supervisors import types_taken
from supervisor.store.base import Operations

router = APIRouter(prefix="/api/admin", tags=["pools and types"])
schedules = APIRouter(prefix="/api/admin/schedules", tags=["schedules"])


@router.put("/pools/{name}", response_model=models.PoolAnswer, responses=changing(404))
async def change_pool(
    state: TheState, name: Annotated[str, Path(min_length=1, max_length=100)], change: models.PoolChange
) -> JSONResponse:
    """Set a pool's number of `workers` (null: automatic) everywhere or on one `host`, or pause or resume all its types.
    Takes effect within a second.
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


@router.put("/types/{type:path}", response_model=models.TypeAnswer, responses=changing(404))
async def change_type(
    state: TheState, type: Annotated[models.JobType, Path()], change: models.TypeChange
) -> JSONResponse:
    """Pause or resume a type at once. One that no pool takes and no job has needs `force: true`."""

    def act(operations: Operations) -> bool:
        return commands.pause(operations, type, change.paused, operations.statistics.now(), force=change.force)

    changed = await state.executor.ask(act)
    return answer({"type": type, "paused": change.paused, "changed": changed})


@router.get("/limits", response_model=models.LimitsPage, responses=reading())
async def list_limits(state: TheState) -> JSONResponse:
    """List the limits of types, and whether an operator has set them."""
    return answer({"limits": await state.executor.ask(commands.limits)})


@router.put("/limits/{type:path}", response_model=models.LimitsAnswer, responses=changing(404))
async def change_limits(
    state: TheState, type: Annotated[models.JobType, Path()], change: models.LimitsChange
) -> JSONResponse:
    """Change when jobs of a type may run, with the keys of `[types.NAME]`; null takes a limit away. Holds at once, and
    over restarts and reloads until it is reset. Jobs that run already are not stopped.
    """
    values = change.model_dump(exclude_unset=True, exclude={"force"})

    def act(operations: Operations) -> dict[str, Any]:
        return commands.limit(operations, type, values, operations.statistics.now(), force=change.force)

    return answer(await state.executor.ask(act))


@router.delete("/limits/{type:path}", response_model=models.LimitsAnswer, responses=changing(404))
async def reset_limits(state: TheState, type: Annotated[models.JobType, Path()]) -> JSONResponse:
    """Return to the configured limits of the type."""

    def act(operations: Operations) -> dict[str, Any]:
        return commands.reset_limits(operations, type, state.limits, operations.statistics.now())

    return answer(await state.executor.ask(act))


Name = Annotated[str, Path(min_length=1, max_length=100, description="The schedule's name.")]


@schedules.post("/{name}", response_model=models.ScheduleAnswer, status_code=201, responses=changing(409))
async def add_schedule(state: TheState, name: Name, keys: dict[str, Any]) -> JSONResponse:
    """Make a schedule at run time, of the keys of `[[schedules]]`. Supervisors know it within a second."""
    await state.executor.ask(
        lambda operations: commands.set_schedule(operations, name, keys, operations.statistics.now(), "add")
    )
    return answer({"name": name, "paused": False, "changed": True}, 201)


@schedules.put("/{name}", response_model=models.ScheduleAnswer, responses=changing(404, 409))
async def change_schedule(state: TheState, name: Name, change: models.ScheduleChange) -> JSONResponse:
    """Pause or resume a schedule (`paused`), or change keys of one that was made at run time: null removes a key. Times
    that a resumed one has missed are handled according to its `misfire`.
    """

    def act(operations: Operations) -> dict[str, Any]:
        now, keys = operations.statistics.now(), change.model_extra or {}
        changed = bool(keys) and commands.set_schedule(operations, name, keys, now, "change")
        if change.paused is not None:
            changed |= commands.pause_schedule(operations, name, change.paused, now)
        planned = operations.schedules.one(name)
        return {"name": name, "paused": planned is not None and planned.paused_at is not None, "changed": changed}

    return answer(await state.executor.ask(act))


@schedules.delete("/{name}", response_model=models.ScheduleAnswer, responses=changing(404, 409))
async def remove_schedule(state: TheState, name: Name) -> JSONResponse:
    """Remove a schedule that was made at run time. Its jobs stay."""
    await state.executor.ask(lambda operations: commands.remove_schedule(operations, name, operations.statistics.now()))
    return answer({"name": name, "paused": False, "changed": True})


@schedules.post(
    "/{name}/run",
    response_model=models.Enqueued,
    status_code=201,
    responses=changing(404, 409),
)
async def run_schedule(
    state: TheState, name: Name, body: Annotated[models.Empty | None, Body()] = None
) -> JSONResponse:
    """Enqueue the schedule's job now, even while it is paused. Its next time stays."""
    job_id = await state.executor.ask(
        lambda operations: commands.run_schedule(operations, name, operations.statistics.now())
    )
    return answer({"id": job_id, "duplicate": False}, 201, {"Location": f"/api/admin/jobs/{job_id}"})
