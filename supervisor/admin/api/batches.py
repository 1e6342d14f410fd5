"""Batches: how far they are, and closing one that its program has left open."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body
from starlette.responses import JSONResponse

from supervisor.admin.answers import answer, changing, reading
from supervisor.admin.api import models
from supervisor.admin.state import TheState
from supervisor.store.base import BatchView, Operations

router = APIRouter(prefix="/api/admin/batches", tags=["batches"])


@router.get("", response_model=models.BatchList, responses=reading())
async def list_batches(state: TheState) -> JSONResponse:
    """The latest 50 batches that have not ended."""
    return answer({"batches": await state.executor.ask(lambda operations: operations.batches.latest())})


@router.get("/{batch_id}", response_model=models.BatchAnswer, responses=reading(404, 422))
async def show(state: TheState, batch_id: models.BatchId) -> JSONResponse:
    """A batch with the numbers of its jobs; `GET /api/admin/jobs?batch=` lists these."""
    return answer(await state.executor.ask(lambda operations: operations.batches.get(batch_id)))


@router.post("/{batch_id}/close", response_model=models.BatchAnswer, responses=changing(404))
async def close(
    state: TheState, batch_id: models.BatchId, body: Annotated[models.Empty | None, Body()] = None
) -> JSONResponse:
    """Its program adds no more jobs: it ends when the last of them has ended, at once if they all have."""

    def act(operations: Operations) -> BatchView:
        operations.batches.close(batch_id)
        return operations.batches.get(batch_id)

    return answer(await state.executor.ask(act))
