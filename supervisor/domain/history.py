"""What ran: how a finished run is counted, the last day by the minute and a month by the hour.

The maintainer keeps it for charts, so that no scraper is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from supervisor.domain.job import Status
from supervisor.domain.settlement import Settlement, run_of

LONGEST_WAIT = 365 * 86_400.0  # seconds; a due time further back means "before all others", not a real wait


class FinishedRun(NamedTuple):
    """A run that succeeded or failed. `run` and `wait` are its seconds, None if unknown."""

    type: str
    failed: bool
    run: float | None
    wait: float | None


def finished_run(settlement: Settlement, until: float) -> FinishedRun | None:
    """The run that this settles; None if it was cancelled, or its job returned uncharged.

    `until` is the latest Unix time at which it ended, for runs that were not timed.
    """
    claim, failure = settlement.claim, settlement.failure
    failed = settlement.status is not Status.DONE
    if claim is None or (failed and (failure is None or failure.kind == "cancelled")):
        return None
    started = settlement.started_at
    known = run_of(settlement)
    run = known[1].duration if known else None
    if run is None and started is not None:
        run = max(0.0, until - started)
    if started is None and run is not None:
        started = until - run
    return FinishedRun(claim.type, failed, run, None if started is None else waiting_time(claim.due_at, started))


def waiting_time(due_at: float, started: float) -> float:
    """Seconds from the time a job could have run to the time it did."""
    wait = started - due_at
    return wait if 0.0 <= wait <= LONGEST_WAIT else 0.0


MINUTE = 60.0  # seconds
HOUR = 3600.0
DAY = 24 * HOUR
KEPT = 30 * DAY  # seconds of history
MINUTES_KEPT = DAY + 10 * MINUTE  # at least: a chart of the last day may begin a little earlier
MOST_TYPES = 50  # with a row of their own in each minute
OTHERS = ""  # the type under which the others are added up


class Minute(NamedTuple):
    """One type in one minute, or in a longer time. `at` is the Unix time at which that began.

    Counts are of the minute: runs that ended `done`, and attempts that `failed`, crashes and time limits
    included. `waiting` (due) and `running` are the values at its end; of a longer time, the largest of these values.
    `run_seconds` and `wait_seconds` are sums over the runs of our workers, to be divided by `done + failed`.
    """

    at: float
    type: str
    done: int = 0
    failed: int = 0
    waiting: int = 0
    running: int = 0
    run_seconds: float = 0.0
    wait_seconds: float = 0.0


class QueueSizes(NamedTuple):
    """The current sizes of one type: jobs that are due, counted up to a limit, and jobs that run."""

    type: str
    waiting: int
    running: int


class Sums(NamedTuple):
    """What has been finished of a type since its supervisor started; see `Minute`."""

    done: int = 0
    failed: int = 0
    run_seconds: float = 0.0
    wait_seconds: float = 0.0

    def since(self, before: Sums) -> Sums:
        """The difference since then, never negative."""
        return Sums(
            max(0, self.done - before.done),
            max(0, self.failed - before.failed),
            max(0.0, self.run_seconds - before.run_seconds),
            max(0.0, self.wait_seconds - before.wait_seconds),
        )


def sums_by_type(found: Mapping[str, Sequence[Any]]) -> dict[str, Sums]:
    """From the fields of each, as they are counted and stored."""
    return {name: Sums(*fields) for name, fields in found.items()}


def minute_of(now: float) -> float:
    """When the minute that contains `now` began."""
    return now // MINUTE * MINUTE


def hour_of(now: float) -> float:
    """When the hour that contains `now` began."""
    return now // HOUR * HOUR


def minutes_begin(now: float) -> float:
    """The time from which on every minute has a row of its own; each hour before it has one for all its minutes."""
    return hour_of(now - MINUTES_KEPT)


def recorded(
    at: float, sums: Mapping[str, Sums], counted: Mapping[str, Sums], standing: Iterable[QueueSizes]
) -> list[Minute]:
    """The rows of one minute: one for each of the busiest types, one for all others together. A type without
    activity and without waiting jobs has none.

    `sums` are the totals up to now, `counted` is the part of them in earlier rows.
    """
    rows: dict[str, Minute] = {}
    for type_, total in sums.items():
        grown = total.since(counted.get(type_, Sums()))
        rows[type_] = Minute(
            at, type_, grown.done, grown.failed, run_seconds=grown.run_seconds, wait_seconds=grown.wait_seconds
        )
    for now in standing:
        row = rows.get(now.type) or Minute(at, now.type)
        rows[now.type] = row._replace(waiting=now.waiting, running=now.running)
    worth = [row for row in rows.values() if row.done or row.failed or row.waiting or row.running]
    worth.sort(key=lambda row: (row.type == OTHERS, -(row.done + row.failed), -(row.waiting + row.running), row.type))
    named = [row for row in worth[:MOST_TYPES] if row.type != OTHERS]
    rest = worth[len(named) :]
    others = (sum(column) for column in zip(*(row[2:] for row in rest), strict=True))
    return [*named, Minute(at, OTHERS, *others)] if rest else named


class Hour(NamedTuple):
    """One type over some time, usually an hour. Means are seconds per run, None without runs."""

    done: int
    failed: int
    mean_run: float | None
    mean_wait: float | None

    @property
    def runs(self) -> int:
        return self.done + self.failed

    @property
    def run_seconds(self) -> float:
        return (self.mean_run or 0.0) * self.runs

    @property
    def wait_seconds(self) -> float:
        return (self.mean_wait or 0.0) * self.runs

    @property
    def failing(self) -> float | None:
        """The share of runs that failed, 0 to 1."""
        return self.failed / self.runs if self.runs else None


QUIET = Hour(0, 0, None, None)


def by_type(minutes: Iterable[Minute]) -> dict[str, Hour]:
    """The minutes of each type, combined."""
    found: dict[str, list[Minute]] = {}
    for minute in minutes:
        found.setdefault(minute.type, []).append(minute)
    return {type_: combined(rows) for type_, rows in found.items()}


def combined(parts: Iterable[Minute | Hour]) -> Hour:
    """Several minutes, or the hours of several types, as one."""
    rows = [(one.done, one.failed, one.run_seconds, one.wait_seconds) for one in parts if one.done or one.failed]
    if not rows:
        return QUIET
    done, failed, ran, waited = map(sum, zip(*rows, strict=True))
    return Hour(int(done), int(failed), ran / (done + failed), waited / (done + failed))
