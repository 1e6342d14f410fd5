"""Scheduled jobs: when a schedule fires next, and what happens to missed times."""

from __future__ import annotations

import datetime
import json
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

Misfire = Literal["once", "skip", "all"]

GRACE = 60.0  # seconds that a job may be late and still count as on time, and that clocks may differ
MOST = 100  # missed times that `misfire = "all"` makes up for, the latest ones
_DAY = 86_400.0
_FIELDS = 5
_MOST_LOOKED_AT = 20_000  # missed times that are counted: two weeks of minutes


class Schedule(NamedTuple):
    """One `[[schedules]]` table. Either `cron`, read in `timezone`, or `every` (seconds) is set.

    `payload` is JSON text. With a `unique_key`, a time adds no job while that of an earlier one is unfinished. Each
    time comes later by a part of `spread`. In `expect_within` one of its jobs must succeed. Both are seconds.
    """

    name: str
    type: str
    payload: str
    cron: str | None
    every: float | None
    timezone: str
    misfire: Misfire
    unique_key: str | None = None
    priority: int = 0
    spread: float = 0.0
    expect_within: float | None = None

    @property
    def timing(self) -> str:
        """Identifies when it fires: with a different timing the planned time is computed again."""
        return json.dumps([self.cron, self.every, self.timezone, *([self.spread] if self.spread else [])])

    def columns(self, now: float) -> dict[str, Any]:
        """What its row says of it, but for its next time, if success is expected from now on."""
        same = ("name", "timing", "type", "payload", "priority", "expect_within")
        return {name: getattr(self, name) for name in same} | {"expected_from": now}

    @property
    def offset(self) -> float:
        """The seconds of `spread` by which it is later, on every machine alike."""
        import hashlib  # slow to import, like zoneinfo below, and every command reads the configuration

        part = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:6], "big") / 2**48
        return int(self.spread * part * 1024) / 1024  # sums with times are exact, so that none comes twice

    def first(self, now: float) -> float:
        """The time at which one that is planned now fires first."""
        return next(self.after(now)) + (self.offset if self.every is not None else 0.0)

    def after(self, moment: float) -> Iterator[float]:
        """The times after `moment`, without end, in Unix seconds. Raises ValueError for an invalid cron line.

        Those of `every` count from `moment`, which is one of them.
        """
        if self.every is not None:
            while True:
                moment += self.every
                yield moment
        for time in _cron_times(self.cron or "", self.timezone, moment - self.offset):
            yield time + self.offset


class Firing(NamedTuple):
    """What to do now: a job for each of these planned times; how many were missed; when to check again."""

    times: list[float]
    missed: int
    next_at: float


def firing(schedule: Schedule, planned: float, now: float) -> Firing:
    """What a schedule does whose next time was `planned`.

    The latest time fires if it is at most GRACE late. For the missed ones, "once" fires one job for
    all, "all" one for each of the latest MOST, "skip" none.

    A time to come stays, unless the schedule could not have named it by now, GRACE included: then the clock was set
    back, and the next time is the one that comes after `now`.
    """
    if planned > now:
        too_late = planned > schedule.first(now + GRACE)
        return Firing([], 0, schedule.first(now) if too_late else planned)
    due = [planned]
    next_at = planned
    for next_at in schedule.after(planned):
        if next_at > now:
            break
        due.append(next_at)
        if len(due) >= _MOST_LOOKED_AT:
            next_at = next(schedule.after(now))
            break
    on_time = [due[-1]] if now - due[-1] <= GRACE else []
    times = {"once": due[-1:], "skip": on_time, "all": due[-MOST:]}[schedule.misfire]
    return Firing(times, len(due) - len(times), next_at)


class NoTimeZones(ValueError):
    """This machine has no time zone database, so nobody can tell whether the name is right."""


def zone(name: str) -> datetime.tzinfo:
    """The time zone of this name. Raises ValueError if this machine has none; UTC it always has."""
    if name == "UTC":
        return datetime.UTC
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        if not zoneinfo.available_timezones():
            raise NoTimeZones(
                f"this machine has no time zones, so {name!r} cannot be read; install the package tzdata, "
                "of the operating system or with pip"
            ) from None
        raise ValueError(f"{name!r} is not a time zone on this machine; write it like Europe/Berlin") from None


def _cron_times(line: str, timezone: str, moment: float) -> Iterator[float]:
    """The local times are cronsim's, their instants ours: its own are wrong in zones that change by half an hour."""
    from cronsim import CronSim, CronSimError  # imported here: only maintainers with schedules need it

    if len(line.split()) != _FIELDS:
        raise ValueError(
            f"{line!r} is not a cron line: it must have five fields (minute, hour, day, month, day of week)"
        )
    where = zone(timezone)
    # Clocks that are put back within a day will show again what they showed before now.
    shown, later = (datetime.datetime.fromtimestamp(at, where).replace(tzinfo=None) for at in (moment, moment + _DAY))
    try:
        local_times = CronSim(line, min(shown, later - datetime.timedelta(seconds=_DAY)))
    except CronSimError as error:
        reason = str(error)
        raise ValueError(f"{line!r} is not a cron line: {reason[:1].lower()}{reason[1:]}") from None
    for time in _instants(local_times, where, any_hour=line.split()[1].startswith("*")):
        if time > moment:
            yield time
            moment = time
    raise ValueError(f"{line!r} never comes")


def _instants(local_times: Iterator[datetime.datetime], where: datetime.tzinfo, *, any_hour: bool) -> Iterator[float]:
    """When clocks show these times. With `any_hour` also when they show one again, and never for one that is skipped;
    otherwise once, for a skipped one at the end of the gap.
    """
    again: deque[float] = deque()
    for local in local_times:
        first, second = (local.replace(tzinfo=where, fold=fold).timestamp() for fold in (0, 1))
        while again and again[0] < first:
            yield again.popleft()
        if first <= second:
            yield first
            if any_hour and first < second:
                again.append(second)
        elif not any_hour:
            yield _end_of_gap(int(second), int(first), where)
    yield from again


def _end_of_gap(before: int, after: int, where: datetime.tzinfo) -> float:
    """The instant between these two from which the offset to UTC is another."""
    old = datetime.datetime.fromtimestamp(before, where).utcoffset()
    instants = range(before, after + 1)
    changed = bisect_left(instants, True, key=lambda at: datetime.datetime.fromtimestamp(at, where).utcoffset() != old)
    return float(instants[changed])
