"""Changes of all jobs that match a filter: the first request lists them, the second changes exactly these."""

from __future__ import annotations

from array import array
from functools import partial

from fastapi import APIRouter, HTTPException
from starlette.responses import JSONResponse

from supervisor.admin.api import models
from supervisor.admin.api.answers import answer, changing, problem
from supervisor.admin.api.jobs import filter_of
from supervisor.admin.state import MOST_IDS, AppState, TheState
from supervisor.admin.store_executor import StoreExecutor
from supervisor.domain.errors import ConfigError
from supervisor.ops import commands
from supervisor.store.base import Filter, Operations

ROUND = 1000  # jobs per database call, so that other calls get their turn; transactions are shorter

router = APIRouter(prefix="/api/admin/jobs", tags=["many jobs"])


@router.post("/retry", response_model=models.BulkAnswer, responses=changing(409))
async def retry(state: TheState, request: models.BulkRequest) -> JSONResponse:
    """Return unsuccessful jobs to pending, due now, counters reset. Without a state: failed and quarantined ones."""
    return await _change("retry", state, request)


@router.post("/cancel", response_model=models.BulkAnswer, responses=changing(409))
async def cancel(state: TheState, request: models.BulkRequest) -> JSONResponse:
    """Cancel pending jobs, ask running ones to stop. Without a state: both."""
    return await _change("cancel", state, request)


@router.post("/delete", response_model=models.BulkAnswer, responses=changing(409))
async def delete(state: TheState, request: models.BulkRequest) -> JSONResponse:
    """Delete finished jobs with their errors and runs. Without a state: all finished ones."""
    return await _change("delete", state, request)


@router.api_route("/retry", methods=["GET", "DELETE"], include_in_schema=False)
@router.api_route("/cancel", methods=["GET", "DELETE"], include_in_schema=False)
@router.api_route("/delete", methods=["GET", "DELETE"], include_in_schema=False)
async def no_job() -> None:
    """These words are not ids of jobs."""
    raise HTTPException(405, headers={"Allow": "POST"})


async def _change(what: commands.Change, state: AppState, request: models.BulkRequest) -> JSONResponse:
    try:
        which = commands.meant(what, filter_of(request.filter, state.settings))
    except ConfigError as error:
        return problem(422, error.problems[0], field="filter.status")
    ids = None if request.snapshot is None else state.snapshots.take(what, request.snapshot)
    if ids is not None:
        return await _change_each(what, state.executor, ids)
    ids = await _matching(state.executor, which)
    if request.snapshot is not None:
        refusal = "the snapshot is unknown or has expired; nothing was changed"
    elif request.count is not None and len(ids) <= request.count:
        return await _change_each(what, state.executor, ids)
    else:
        refusal = f"{len(ids)} jobs match now, more than the {request.count} expected; nothing was changed"
    name = state.snapshots.keep(what, ids)
    if request.snapshot is None and request.count is None:
        return answer({"matching": len(ids), "changed": 0, "skipped": 0, "duplicates": 0, "snapshot": name})
    hint = "check the jobs that match now, and send the new snapshot to change them"
    return problem(409, refusal, hint=hint, matching=len(ids), snapshot=name)


async def _matching(executor: StoreExecutor, which: Filter) -> array[int]:
    """The ids of the matching jobs, newest first, no more than a snapshot holds."""

    def some(operations: Operations, before: int | None, limit: int) -> tuple[list[int], int | None]:
        return operations.jobs.some_ids(which, before=before, limit=limit)

    found: array[int] = array("q")
    before: int | None = None
    while len(found) < MOST_IDS:
        limit = min(ROUND * 10, MOST_IDS - len(found))
        ids, before = await executor.ask(partial(some, before=before, limit=limit))
        found.extend(ids)
        if before is None:
            break
    return found


async def _change_each(what: commands.Change, executor: StoreExecutor, ids: array[int]) -> JSONResponse:
    def change(operations: Operations, some: list[int]) -> tuple[int, int]:
        return commands.change(operations, what, some, operations.statistics.now())

    changed = duplicates = 0
    for start in range(0, len(ids), ROUND):
        done, held = await executor.ask(partial(change, some=ids[start : start + ROUND].tolist()))
        changed, duplicates = changed + done, duplicates + held
    skipped = len(ids) - changed - duplicates
    return answer({"matching": len(ids), "changed": changed, "skipped": skipped, "duplicates": duplicates})
