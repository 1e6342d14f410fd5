"""Statistics: counts, ages and run times, failures by cause, the last hour by minute."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from supervisor.admin.api.documents import answer
from supervisor.admin.api.models import Moment
from supervisor.admin.api.problems import each_once, reading
from supervisor.admin.state import TheState
from supervisor.domain.history import KEPT, Minute
from supervisor.ops.views import TypeView, largest
from supervisor.store.base import ErrorGroup

DAY = 86400.0

router = APIRouter(prefix="/api/admin", tags=["numbers"])


class Stats(BaseModel):
    """Statistics of the jobs table."""

    time: float
    jobs: dict[str, int] = Field(
        description="By state. In a large table, the counts of finished jobs may be slightly out of date."
    )
    pending: int
    due: int = Field(description="Pending jobs that are due; at most 10,000 of each type are counted.")
    oldest_age: float | None = Field(description="How long the oldest of them has been due.")
    failed_last_hour: int = Field(description="Attempts that failed in the last hour.")
    types: list[TypeView]


class FailuresQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    since: Moment | None = Field(default=None, description="Failures since this time; default: the last 24 hours.")
    limit: int = Field(default=100, ge=1, le=1000, description="The maximum number of groups.")


class Failures(BaseModel):
    """Failed attempts, grouped by similar messages; only the latest 10,000 are read."""

    since: float
    groups: list[ErrorGroup]


class HistoryQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    since: Moment | None = Field(default=None, description="Minutes since this time; default: the last hour.")


class History(BaseModel):
    """The maintainer's history for charts: one row per type and minute."""

    since: float
    minutes: list[Minute]


@router.get("/stats", response_model=Stats, responses=reading())
async def stats(state: TheState) -> JSONResponse:
    """Jobs by state, waiting jobs and their ages, failures, and the run times of each type."""
    seen = await state.watch.overview()
    return answer(
        {
            "time": seen.time,
            "jobs": seen.jobs,
            "pending": seen.jobs["pending"],
            "due": sum(type_.due for type_ in seen.types),
            "oldest_age": largest(type_.oldest_age for type_ in seen.types),
            "failed_last_hour": sum(seen.failures_last_hour.values()),
            "types": seen.types,
        }
    )


@router.get("/failures", response_model=Failures, responses=reading(422), dependencies=[each_once()])
async def failures(state: TheState, query: Annotated[FailuresQuery, Query()]) -> JSONResponse:
    """Failures and their frequency: messages that differ only in numbers and names are one group."""
    since = time.time() - DAY if query.since is None else float(query.since)
    groups = await state.executor.ask(lambda operations: operations.statistics.error_groups(since, query.limit))
    return answer({"since": since, "groups": groups})


@router.get("/history", response_model=History, responses=reading(422), dependencies=[each_once()])
async def history(state: TheState, query: Annotated[HistoryQuery, Query()]) -> JSONResponse:
    """Done, failed, waiting and running jobs of each type, by minute."""
    since = time.time() - KEPT if query.since is None else float(query.since)
    minutes = await state.executor.ask(lambda operations: operations.history.minutes(since))
    return answer({"since": since, "minutes": minutes})
