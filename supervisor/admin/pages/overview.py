"""The overview page: pools, the last hour, and current problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fastapi import Request
from fastapi.responses import HTMLResponse

from supervisor.admin import formatting
from supervisor.admin.hour import Hour, Series
from supervisor.admin.pages import route
from supervisor.admin.state import TheState
from supervisor.domain import history
from supervisor.domain.history import KEPT, minute_of
from supervisor.ops.status import Overview, PoolView, SupervisorView

LATE = 60.0  # seconds after which a schedule counts as late
MOST_NAMED = 3  # types without a pool that get a line each

router = route.router()


@dataclass(frozen=True, slots=True)
class Trouble:
    """A problem to show. `level` is fault, warning or note; `advice` says what to do."""

    level: str
    fact: str
    advice: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class PoolCard:
    """One pool with data of its workers and types."""

    view: PoolView
    busy: int
    due: int  # includes jobs of paused types, which the pool itself does not count
    oldest: float | None
    sums: history.Hour
    runs: Series
    failures: int


@router.get("/")
async def overview(request: Request, state: TheState) -> HTMLResponse:
    shown = await state.watch.overview()
    hour = Hour(
        await state.executor.ask(lambda operations: operations.history.minutes(minute_of(shown.time) - KEPT)),
        shown.time,
    )
    return await route.page(
        request,
        "overview.html",
        shown,
        hour=hour,
        troubles=sorted(troubles(shown), key=lambda trouble: ("fault", "warning", "note").index(trouble.level)),
        pools=[pool_card(pool, shown, hour) for pool in shown.pools],
        oldest=max((view.oldest_age for view in shown.types if view.oldest_age is not None), default=None),
    )


def pool_card(pool: PoolView, shown: Overview, hour: Hour) -> PoolCard:
    own = [worker for worker in shown.workers if (worker.pool, worker.supervisor) == (pool.name, pool.supervisor)]
    kept = [view for view in shown.types if view.type in pool.paused]
    ages = [age for age in (pool.oldest_age, *(view.oldest_age for view in kept)) if age is not None]
    return PoolCard(
        view=pool,
        busy=sum(worker.state == "busy" for worker in own),
        due=pool.due + sum(view.due for view in kept),
        oldest=max(ages, default=None),
        sums=hour.sums(pool.types),
        runs=hour.runs_of(pool.types),
        failures=sum(shown.failures_last_hour.get(type_, 0) for type_ in pool.types),
    )


def troubles(shown: Overview) -> Iterator[Trouble]:
    """Current problems and unusual states."""
    if not shown.running:
        waits = formatting.counted(shown.jobs["pending"], "job")
        yield Trouble("fault", "No supervisor is running.", f"{waits} will wait until one is started: supervisor run")
    for supervisor in shown.supervisors:
        yield from _of_supervisor(supervisor)
    for pool in shown.pools:
        if pool.problem and pool.broken:
            yield Trouble("fault", f"The pool {pool.name} is broken: {pool.problem}", "It is retried automatically.")
        elif pool.problem:
            yield Trouble("warning", f"The pool {pool.name} works, but: {pool.problem}", "It is retried automatically.")
    yield from _of_types(shown)
    for schedule in shown.schedules:
        if schedule.next_in < -LATE:
            late = formatting.span(-schedule.next_in)
            yield Trouble(
                "warning", f"The schedule {schedule.name} is {late} late.", "No running supervisor has this schedule."
            )


def _of_types(shown: Overview) -> Iterator[Trouble]:
    pending = {view.type: view.jobs.get("pending", 0) for view in shown.types}
    waits = {type_: formatting.counted(pending.get(type_, 0), "job waits", "jobs wait") for type_ in pending}
    if len(shown.unhandled) > MOST_NAMED:
        # The types that are summed up have no pool: those with one come first.
        more = 0 if shown.other_types is None else shown.other_types.jobs.get("pending", 0)
        waiting = more + sum(pending[view.type] for view in shown.types if not view.handled)
        many = formatting.counted(waiting, "job waits", "jobs wait")
        yield Trouble("warning", f"No pool takes {shown.unhandled_types} types: {many}.", "They are marked below.")
    else:
        for type_ in shown.unhandled:
            advice = "Give it to a pool, then reload."
            yield Trouble(
                "warning", f"No pool takes the type {type_}: {waits.get(type_, 'jobs wait')}.", advice, link=type_
            )
    for type_ in shown.paused:
        yield Trouble("note", f"The type {type_} is paused: {waits.get(type_, 'jobs wait')}.", link=type_)


def _of_supervisor(supervisor: SupervisorView) -> Iterator[Trouble]:
    who = f"The supervisor {supervisor.pid} on {supervisor.host}"
    if supervisor.alive is False:
        yield Trouble("note", f"{who} has ended unexpectedly.", "The next supervisor to start recovers its jobs.")
        return
    if supervisor.trouble:
        yield Trouble("fault", f"{who} has a problem: {supervisor.trouble}")
    for duty in supervisor.duties:
        yield Trouble("fault", f"{who}: {duty.name} fails: {duty.error}", "It is retried automatically.")
    if supervisor.stopping:
        yield Trouble("note", f"{who} is stopping: {supervisor.stopping}")
    if supervisor.admin is not None and supervisor.admin.problem:
        yield Trouble("warning", f"{who} has a problem with its admin process: {supervisor.admin.problem}")
    if not supervisor.visible:
        yield Trouble("warning", f"{who}: its scoreboard cannot be read.", "Its pools and workers are unknown.")
