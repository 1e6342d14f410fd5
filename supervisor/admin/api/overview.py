"""The state in numbers: health, the overview, workers, counts, failures by cause, the history by minute and by hour."""

from __future__ import annotations

from math import ceil, inf
from typing import Annotated, Any, get_type_hints

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, create_model
from starlette.responses import JSONResponse, Response

import supervisor
from supervisor.admin.answers import AGAIN, answer, reading, streaming
from supervisor.admin.api.models import Health, Moment, NotReady, Ready, described
from supervisor.admin.state import TheState
from supervisor.domain.errors import StoreError
from supervisor.domain.history import DAY, HOUR, Minute, hour_of
from supervisor.ops.diagnosis import diagnose
from supervisor.ops.views import Overview, TypeView, largest
from supervisor.store.base import ErrorGroup, Operations

_OVERVIEW = (
    "`event: overview` with the overview as JSON, immediately and whenever more than the time has changed, at most "
    "once a second; `event: trouble` with an error while the database cannot be used; comments as heartbeats."
)
MOST_ROWS = 10_000  # of the history in one answer

open_router = APIRouter(tags=["health"])  # without a token
router = APIRouter()


@open_router.get("/healthz", response_model=Health)
async def healthz() -> JSONResponse:
    """This process answers; needs no token. It says nothing about the database or the workers."""
    return answer({"status": "alive", "version": supervisor.__version__})


@router.get(
    "/readyz",
    tags=["health"],
    response_model=Ready,
    responses={**reading(), 503: {"model": NotReady, "description": "Not ready; `reasons` say why."}},
)
async def readyz(state: TheState) -> JSONResponse:
    """Jobs can be stored and are run: the database can be read and written, a supervisor is running and has
    recovered the jobs of earlier ones, and no pool is broken. The supervisor of this process has its lease, and its
    host is not drained.
    """
    try:
        seen = await state.watch.overview()
        await state.executor.ask(lambda operations: operations.check(writable=True))
    except StoreError as error:
        return _not_ready([str(error)])
    findings = [finding for finding in diagnose(seen) if finding.blocks]
    if state.supervisor:  # other hosts have admin processes of their own
        findings = [finding for finding in findings if finding.supervisor in ("", state.supervisor)]
    reasons = [finding.fact for finding in findings]
    return _not_ready(reasons) if reasons else answer({"ready": True})


def _not_ready(reasons: list[str]) -> JSONResponse:
    error = f"not ready: {reasons[0]}"
    return answer({"error": error, "reasons": reasons}, 503, AGAIN)


@router.get("/api/admin/overview", tags=["state"], response_model=described(Overview), responses=reading())
async def overview(state: TheState) -> JSONResponse:
    """The complete state, at most a second old; the same as `supervisor status --json`."""
    return answer((await state.watch.overview()).as_json())


_PARTS = (  # name, tag, fields of the overview, and what is listed
    ("pools", "pools and types", "supervisors pools gone", "size, target and reason, due jobs, the oldest, problems"),
    ("types", "pools and types", "types unhandled", "jobs by state, whether paused, due jobs, failures, run times"),
    ("workers", "state", "workers", "process, state, job, memory and age of the last heartbeat"),
    ("schedules", "schedules", "schedules", "when each fires next, when it last did, and whether it is paused"),
)


def _add_part(name: str, tag: str, fields: str, about: str) -> None:
    """The address of some fields of the overview."""
    hints = get_type_hints(Overview)
    own: dict[str, Any] = {field: (described(hints[field]), ...) for field in fields.split()}

    async def part(state: TheState) -> JSONResponse:
        seen = await state.watch.overview()
        return answer({field: getattr(seen, field) for field in own})

    router.add_api_route(
        f"/api/admin/{name}",
        part,
        name=f"list_{name}",
        tags=[tag],
        response_model=create_model(name.capitalize(), **own),
        responses=reading(),
        description=f"List {name}: {about}.",
    )


for _part in _PARTS:
    _add_part(*_part)


@router.get(
    "/api/admin/events",
    tags=["state"],
    response_class=Response,
    response_description=_OVERVIEW,
    responses={200: streaming("overview", "trouble"), **reading()},
)
async def overview_events(state: TheState) -> Response:
    """The overview whenever it has changed. At most 50 clients may listen."""
    return state.watch.listen()


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
    types: list[described(TypeView)]  # type: ignore[valid-type]


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

    since: Moment | None = Field(
        default=None, description="From this time on; default: the last hour by minutes, the last day by hours."
    )
    until: Moment | None = Field(default=None, description="What began before this time; default: all.")


class History(BaseModel):
    """The maintainer's history for charts: one row per type and minute. Before the last day, the minutes of an hour
    have been added up in the first one.
    """

    since: float
    minutes: list[Minute]
    next: float | None = Field(description="With it as `since`, the rows after these; null: there are no more.")


class HistoryHours(BaseModel):
    """The same by the hour, for the last 30 days: sums, and the largest numbers of waiting and running jobs."""

    since: float
    hours: list[Minute]
    next: float | None = Field(description="With it as `since`, the rows after these; null: there are no more.")


@router.get("/api/admin/stats", tags=["numbers"], response_model=Stats, responses=reading())
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


@router.get("/api/admin/failures", tags=["numbers"], response_model=Failures, responses=reading(422))
async def failures(state: TheState, query: Annotated[FailuresQuery, Query()]) -> JSONResponse:
    """Failed attempts by cause, of the last day without `since`: similar messages are one group."""

    def look(operations: Operations) -> dict[str, Any]:
        since = operations.statistics.now() - DAY if query.since is None else query.since
        return {"since": since, "groups": operations.statistics.error_groups(since, query.limit)}

    return answer(await state.executor.ask(look))


@router.get("/api/admin/history", tags=["numbers"], response_model=History, responses=reading(422))
async def history(state: TheState, query: Annotated[HistoryQuery, Query()]) -> JSONResponse:
    """Done, failed, waiting and running jobs of each type, by minute; without `since` of the last hour."""
    until = inf if query.until is None else query.until

    def look(operations: Operations) -> dict[str, Any]:
        since = operations.statistics.now() - HOUR if query.since is None else query.since
        return _bounded("minutes", since, operations.history.minutes(since, until, MOST_ROWS + 1))

    return answer(await state.executor.ask(look))


@router.get("/api/admin/history/hours", tags=["numbers"], response_model=HistoryHours, responses=reading(422))
async def hours(state: TheState, query: Annotated[HistoryQuery, Query()]) -> JSONResponse:
    """The same by the hour, without `since` of the last day; the current hour as far as it has come."""
    until = inf if query.until is None else HOUR * ceil(query.until / HOUR)

    def look(operations: Operations) -> dict[str, Any]:
        since = hour_of(operations.statistics.now() - DAY if query.since is None else query.since)
        return _bounded("hours", since, operations.history.added_up(since, until, HOUR, MOST_ROWS + 1))

    return answer(await state.executor.ask(look))


def _bounded(name: str, since: float, rows: list[Minute]) -> dict[str, Any]:
    """The first rows, as far as whole times fit into one answer, and the time of the next one."""
    following = rows[-1].at if len(rows) > MOST_ROWS else None
    first = rows if following is None else [row for row in rows if row.at < following]
    return {"since": since, name: first or rows, "next": following if first else None}
