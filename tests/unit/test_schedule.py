"""When schedules fire, and what becomes of missed times."""

from __future__ import annotations

import datetime
import itertools
import zoneinfo

import pytest

from supervisor.domain.schedule import GRACE, MOST, Misfire, Schedule, firing


def every(seconds: float, misfire: Misfire = "once") -> Schedule:
    return Schedule("s", "tidy", "{}", None, seconds, "UTC", misfire)


def cron(line: str, timezone: str = "UTC", misfire: Misfire = "once") -> Schedule:
    return Schedule("s", "tidy", "{}", line, None, timezone, misfire)


def at(text: str, timezone: str = "UTC") -> float:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=zoneinfo.ZoneInfo(timezone)).timestamp()


def written(times: list[float], timezone: str) -> list[str]:
    zone = zoneinfo.ZoneInfo(timezone)
    return [datetime.datetime.fromtimestamp(time, zone).strftime("%d %H:%M %z") for time in times]


def test_a_time_that_has_just_come_fires_one_job_for_that_time() -> None:
    decision = firing(every(10), 100.0, 100.2)

    assert (decision.times, decision.missed, decision.next_at) == ([100.0], 0, 110.0)


@pytest.mark.parametrize(
    ("misfire", "times", "missed"),
    [("once", [1300.0], 3), ("skip", [], 4), ("all", [1000.0, 1100.0, 1200.0, 1300.0], 0)],
)
def test_missed_times_follow_the_policy(misfire: Misfire, times: list[float], missed: int) -> None:
    decision = firing(every(100, misfire), 1000.0, 1300.0 + GRACE + 1)

    assert (decision.times, decision.missed, decision.next_at) == (times, missed, 1400.0)


def test_skip_skips_only_what_is_too_late() -> None:
    assert firing(every(100, "skip"), 1000.0, 1300.0 + GRACE - 1).times == [1300.0]


def test_making_up_for_missed_times_is_bounded() -> None:
    decision = firing(every(1, "all"), 0.0, 1_000_000.5)

    assert len(decision.times) == MOST
    assert decision.next_at == pytest.approx(1_000_001.5)


def test_cron_is_read_in_its_time_zone() -> None:
    times = list(itertools.islice(cron("0 3 * * *", "Europe/Berlin").after(at("2026-07-01 12:00")), 2))

    assert times == [at("2026-07-02 03:00", "Europe/Berlin"), at("2026-07-03 03:00", "Europe/Berlin")]


@pytest.mark.parametrize(
    ("line", "start", "expected"),
    [
        # The hour that does not exist in spring: the job comes right after it.
        ("30 2 * * *", "2026-03-28 12:00", ["29 03:00 +0200", "30 02:30 +0200"]),
        # The hour that comes twice in autumn: once.
        ("30 2 * * *", "2026-10-24 12:00", ["25 02:30 +0200", "26 02:30 +0100"]),
        ("0 12 * * *", "2026-10-24 13:00", ["25 12:00 +0100", "26 12:00 +0100"]),
    ],
)
def test_changes_of_the_clock_neither_lose_nor_double_a_time(line: str, start: str, expected: list[str]) -> None:
    berlin = "Europe/Berlin"
    times = list(itertools.islice(cron(line, berlin).after(at(start, berlin)), 2))

    assert written(times, berlin) == expected


@pytest.mark.parametrize("line", ["", "* * *", "61 * * * *", "0 0 30 2 *", "tomorrow"])
def test_a_line_that_is_none_or_never_comes_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"cron line|never comes"):
        next(cron(line).after(0.0))
