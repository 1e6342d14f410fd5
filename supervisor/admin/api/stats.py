"""Numbers: counts, ages and speeds, failures by cause, the last hour in minutes."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from supervisor.admin.api.documents import answer
from supervisor.admin.api.models import Moment
from supervisor.admin.api.problems import each_once, reading
from supervisor.admin.state import TheOffice
from supervisor.domain.history import KEPT, Minute
from supervisor.ops.status import TypeView
from supervisor.store.base import ErrorGroup

DAY = 86400.0

router = APIRouter(prefix="/api/admin", tags=["numbers"])


class Stats(BaseModel):
    """The table in numbers."""

    time: float
    jobs: dict[str, int] = Field(description="By state. In a large table, done and cancelled ones are a little old.")
    pending: int
    due: int = Field(description="Pending ones whose time has come; those of a type are counted up to 10,000.")
    oldest_age: float | None = Field(description="For how long the first of them has been due.")
    failed_last_hour: int = Field(description="Attempts that failed in the last hour.")
    types: list[TypeView]


class FailuresQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    since: Moment | None = Field(default=None, description="From then on; without it, in the last 24 hours.")
    limit: int = Field(default=100, ge=1, le=1000, description="So many groups at most.")


class Failures(BaseModel):
    """Failed attempts, put together by what they have in common; the latest 10,000 are looked at."""

    since: float
    groups: list[ErrorGroup]


class HistoryQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    since: Moment | None = Field(default=None, description="From then on; without it, the last hour.")


class History(BaseModel):
    """What the maintainer keeps for charts: a row for each type and minute."""

    since: float
    minutes: list[Minute]


@router.get("/stats", response_model=Stats, responses=reading())
async def stats(state: TheOffice) -> JSONResponse:
    """How many jobs there are in each state, how many wait for how long, failures, and how long each type takes."""
    seen = await state.watch.overview()
    ages = [type_.oldest_age for type_ in seen.types if type_.oldest_age is not None]
    return answer(
        {
            "time": seen.time,
            "jobs": seen.jobs,
            "pending": seen.jobs["pending"],
            "due": sum(type_.due for type_ in seen.types),
            "oldest_age": max(ages, default=None),
            "failed_last_hour": sum(seen.failures_last_hour.values()),
            "types": [asdict(type_) for type_ in seen.types],
        }
    )


@router.get("/failures", response_model=Failures, responses=reading(422), dependencies=[each_once()])
async def failures(state: TheOffice, query: Annotated[FailuresQuery, Query()]) -> JSONResponse:
    """What fails and how often: messages that differ in numbers and names only are one group."""
    since = time.time() - DAY if query.since is None else float(query.since)
    groups = await state.executor.ask(lambda operations: operations.statistics.error_groups(since, query.limit))
    return answer({"since": since, "groups": [asdict(group) for group in groups]})


@router.get("/history", response_model=History, responses=reading(422), dependencies=[each_once()])
async def history(state: TheOffice, query: Annotated[HistoryQuery, Query()]) -> JSONResponse:
    """Done, failed, waiting and running jobs of each type, minute by minute."""
    since = time.time() - KEPT if query.since is None else float(query.since)
    minutes = await state.executor.ask(lambda operations: operations.history.minutes(since))
    return answer({"since": since, "minutes": [minute._asdict() for minute in minutes]})
