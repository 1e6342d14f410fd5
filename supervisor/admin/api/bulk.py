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
_ALL = 2**62

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
    if request.snapshot is not None:
        ids = state.snapshots.take(what, request.snapshot)
        if ids is None:
            return await _confirm(
                what, state, which, "the snapshot is unknown or has expired; nothing was changed", 409
            )
        parts = [ids[start : start + ROUND].tolist() for start in range(0, len(ids), ROUND)]
        done = [await state.executor.ask(partial(_change_part, what=what, ids=part)) for part in parts]
        return _changed(len(ids), sum(changed for changed, _ in done), sum(held for _, held in done))
    if request.count is None:
        return await _confirm(what, state, which)
    matching = await state.executor.ask(lambda operations: operations.jobs.count(which, limit=_ALL))
    if matching > request.count:
        said = f"{matching} jobs match now, more than the {request.count} expected; nothing was changed"
        return await _confirm(what, state, which, said, 409)
    return _changed(*await _in_rounds(state.executor, what, which, request.count))


def _changed(matching: int, changed: int, duplicates: int) -> JSONResponse:
    skipped = matching - changed - duplicates
    return answer({"matching": matching, "changed": changed, "skipped": skipped, "duplicates": duplicates})


def _change_part(operations: Operations, what: commands.Change, ids: list[int]) -> tuple[int, int]:
    return commands.change(operations, what, ids, operations.statistics.now())


async def _confirm(
    what: commands.Change, state: AppState, which: Filter, refusal: str = "", status: int = 200
) -> JSONResponse:
    """Answer how many jobs match now, with a snapshot of them."""
    ids = await _meant(state.executor, which)
    name = state.snapshots.keep(what, ids)
    if not refusal:
        return answer({"matching": len(ids), "changed": 0, "skipped": 0, "duplicates": 0, "snapshot": name})
    hint = "check the jobs that match now, and send the new snapshot to change them"
    return problem(status, refusal, hint=hint, matching=len(ids), snapshot=name)


async def _meant(executor: StoreExecutor, which: Filter) -> array[int]:
    """The ids of the matching jobs, newest first, no more than a snapshot holds."""
    found: array[int] = array("q")
    before: int | None = None
    while len(found) < MOST_IDS:
        limit = min(ROUND * 10, MOST_IDS - len(found))
        ids, before = await executor.ask(partial(_some_ids, which=which, before=before, limit=limit))
        found.extend(ids)
        if before is None:
            break
    return found


def _some_ids(operations: Operations, which: Filter, before: int | None, limit: int) -> tuple[list[int], int | None]:
    return operations.jobs.some_ids(which, before=before, limit=limit)


async def _in_rounds(executor: StoreExecutor, what: commands.Change, which: Filter, most: int) -> tuple[int, int, int]:
    """Returns how many jobs matched, how many of them were changed, and how many are duplicates of others."""

    def act(operations: Operations, before: int | None, limit: int) -> tuple[int, int, int, int | None]:
        ids, floor = _some_ids(operations, which, before, limit)
        return len(ids), *_change_part(operations, what, ids), floor

    taken = changed = duplicates = 0
    before: int | None = None
    while taken < most:
        matched, done, held, before = await executor.ask(partial(act, before=before, limit=min(ROUND, most - taken)))
        taken, changed, duplicates = taken + matched, changed + done, duplicates + held
        if before is None:
            break
    return taken, changed, duplicates
