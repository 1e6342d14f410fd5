"""Scheduled jobs: when a schedule fires next, and what happens to missed times."""

from __future__ import annotations

import datetime
import json
import zoneinfo
from collections.abc import Iterator
from typing import Literal, NamedTuple

Misfire = Literal["once", "skip", "all"]

GRACE = 60.0  # seconds that a job may be late and still count as on time, and that clocks may differ
MOST = 100  # missed times that `misfire = "all"` makes up for, the latest ones
_FIELDS = 5
_MOST_LOOKED_AT = 20_000  # missed times that are counted: two weeks of minutes


class Schedule(NamedTuple):
    """One `[[schedules]]` table. Either `cron`, read in `timezone`, or `every` (seconds) is set.

    `payload` is JSON text. With a `unique_key`, a time adds no job while that of an earlier one is unfinished.
    """

    name: str
    type: str
    payload: str
    cron: str | None
    every: float | None
    timezone: str
    misfire: Misfire
    unique_key: str | None = None

    @property
    def timing(self) -> str:
        """Identifies when it fires: with a different timing the planned time is computed again."""
        return json.dumps([self.cron, self.every, self.timezone])

    def after(self, moment: float) -> Iterator[float]:
        """The times after `moment`, without end, in Unix seconds. Raises ValueError for an invalid cron line."""
        if self.every is not None:
            while True:
                moment += self.every
                yield moment
        yield from _cron_times(self.cron or "", self.timezone, moment)


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
        too_late = planned > next(schedule.after(now + GRACE))
        return Firing([], 0, next(schedule.after(now)) if too_late else planned)
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
    from cronsim import CronSim, CronSimError  # imported here: only maintainers with schedules need it

    if len(line.split()) != _FIELDS:
        raise ValueError(
            f"{line!r} is not a cron line: it must have five fields (minute, hour, day, month, day of week)"
        )
    try:
        times = CronSim(line, datetime.datetime.fromtimestamp(moment, zone(timezone)))
    except CronSimError as error:
        reason = str(error)
        raise ValueError(f"{line!r} is not a cron line: {reason[:1].lower()}{reason[1:]}") from None
    for time in times:
        if (at := time.timestamp()) > moment:  # in the hour that comes twice, it names those of the first one again
            yield at
            moment = at
    raise ValueError(f"{line!r} never comes")
