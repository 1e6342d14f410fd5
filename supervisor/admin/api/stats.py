"""Statistics: counts, ages and run times, failures by cause, the history by minute and by hour."""

from __future__ import annotations

from math import ceil, inf
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from supervisor.admin.api.documents import answer
from supervisor.admin.api.models import Moment
from supervisor.admin.api.problems import each_once, reading
from supervisor.admin.state import AppState, TheState
from supervisor.domain.history import HOUR, Minute, hour_of
from supervisor.ops.views import TypeView, largest
from supervisor.store.base import ErrorGroup

DAY = 86400.0
MOST_ROWS = 10_000  # of the history in one answer

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
    until: Moment | None = Field(default=None, description="Minutes that began before this time; default: all.")


class History(BaseModel):
    """The maintainer's history for charts: one row per type and minute. Before the last day, the minutes of an hour
    have been added up in the first one.
    """

    since: float
    minutes: list[Minute]
    next: float | None = Field(description="With it as `since`, the rows after these; null: there are no more.")


class HoursQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    since: Moment | None = Field(default=None, description="Hours since this time; default: the last day.")
    until: Moment | None = Field(default=None, description="Hours that began before this time; default: all.")


class HistoryHours(BaseModel):
    """The same by the hour, for the last 30 days: sums, and the largest numbers of waiting and running jobs."""

    since: float
    hours: list[Minute]
    next: float | None = Field(description="With it as `since`, the rows after these; null: there are no more.")


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
    since = float(query.since) if query.since is not None else await _now(state) - DAY
    groups = await state.executor.ask(lambda operations: operations.statistics.error_groups(since, query.limit))
    return answer({"since": since, "groups": groups})


@router.get("/history", response_model=History, responses=reading(422), dependencies=[each_once()])
async def history(state: TheState, query: Annotated[HistoryQuery, Query()]) -> JSONResponse:
    """Done, failed, waiting and running jobs of each type, by minute."""
    since = float(query.since) if query.since is not None else await _now(state) - HOUR
    until = inf if query.until is None else float(query.until)
    found = await state.executor.ask(lambda operations: operations.history.minutes(since, until, MOST_ROWS + 1))
    minutes, following = bounded(found)
    return answer({"since": since, "minutes": minutes, "next": following})


@router.get("/history/hours", response_model=HistoryHours, responses=reading(422), dependencies=[each_once()])
async def hours(state: TheState, query: Annotated[HoursQuery, Query()]) -> JSONResponse:
    """The same by the hour; the current hour is included as far as it has come."""
    since = hour_of(float(query.since) if query.since is not None else await _now(state) - DAY)
    until = inf if query.until is None else HOUR * ceil(float(query.until) / HOUR)
    found = await state.executor.ask(lambda operations: operations.history.added_up(since, until, HOUR, MOST_ROWS + 1))
    rows, following = bounded(found)
    return answer({"since": since, "hours": rows, "next": following})


async def _now(state: AppState) -> float:
    return await state.executor.ask(lambda operations: operations.statistics.now())


def bounded(rows: list[Minute]) -> tuple[list[Minute], float | None]:
    """The first rows, as far as whole times fit into one answer, and the time of the next one."""
    if len(rows) <= MOST_ROWS:
        return rows, None
    following = rows[-1].at
    first = [row for row in rows if row.at < following]
    return (first, following) if first else (rows, None)
