"""Workers and the overview."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import JSONResponse

from supervisor.admin.api.documents import answer
from supervisor.admin.api.problems import reading
from supervisor.admin.state import TheState
from supervisor.ops.views import Overview, WorkerView

router = APIRouter(prefix="/api/admin", tags=["state"])


class Workers(BaseModel):
    workers: list[WorkerView]


@router.get("/overview", response_model=Overview, responses=reading())
async def overview(state: TheState) -> JSONResponse:
    """The complete state, at most a second old; the same as `supervisor status --json`."""
    return answer((await state.watch.overview()).as_json())


@router.get("/workers", response_model=Workers, responses=reading())
async def list_workers(state: TheState) -> JSONResponse:
    """List workers: process, state, job, memory and age of the last heartbeat."""
    return answer({"workers": (await state.watch.overview()).workers})
