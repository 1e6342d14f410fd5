"""Pools and types: how many workers there are, what waits, and what is paused."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel
from starlette.responses import JSONResponse

from supervisor import operating
from supervisor.admin.api import models
from supervisor.admin.api.documents import answer
from supervisor.admin.api.problems import changing, reading
from supervisor.admin.office import TheOffice
from supervisor.status import PoolView, SupervisorView, TypeView
from supervisor.store.base import Operations

router = APIRouter(prefix="/api/admin", tags=["pools and types"])


class Pools(BaseModel):
    """The pools of every supervisor of the database."""

    supervisors: list[SupervisorView]
    pools: list[PoolView]


class Types(BaseModel):
    types: list[TypeView]
    unhandled: list[str]


@router.get("/pools", response_model=Pools, responses=reading())
async def list_pools(office: TheOffice) -> JSONResponse:
    """Each pool: its size, its target and why, what is due, the oldest, the rate, what is wrong."""
    seen = await office.watch.overview()
    return answer(
        {
            "supervisors": [asdict(supervisor) for supervisor in seen.supervisors],
            "pools": [asdict(pool) for pool in seen.pools],
        }
    )


@router.put("/pools/{name}", response_model=models.PoolAnswer, responses=changing(404))
async def change_pool(
    office: TheOffice, name: Annotated[str, Path(min_length=1, max_length=100)], change: models.PoolChange
) -> JSONResponse:
    """Set the number of a pool's workers, or pause all its types; obeyed within a second."""

    def act(operations: Operations) -> dict[str, Any]:
        now = time.time()
        given = change.model_fields_set
        if "paused" in given:
            operating.check_scale(operations, name, change.workers, office.pools)
            operating.pause_pool(operations, name, change.paused, now)
        if "workers" in given:
            operating.scale(operations, name, change.workers, office.pools, now)
        controls = operations.controls()
        types = operating.types_of(operations, name)
        return {
            "name": name,
            "workers": controls.sizes.get(name),
            "types": types,
            "paused": [type_ for type_ in types if type_ in controls.paused],
        }

    return answer(await office.desk.ask(act))


@router.get("/types", response_model=Types, responses=reading())
async def list_types(office: TheOffice) -> JSONResponse:
    """Each type: its jobs by state, whether it is paused, what is due, what failed, how long it takes."""
    seen = await office.watch.overview()
    return answer({"types": [asdict(type_) for type_ in seen.types], "unhandled": seen.unhandled})


@router.put("/types/{type:path}", response_model=models.TypeAnswer, responses=changing())
async def change_type(
    office: TheOffice, type: Annotated[models.JobType, Path()], change: models.TypeChange
) -> JSONResponse:
    """Start no more jobs of a type, or start them again; obeyed at once."""
    changed = await office.desk.ask(lambda operations: operating.pause(operations, type, change.paused, time.time()))
    return answer({"type": type, "paused": change.paused, "changed": changed})
