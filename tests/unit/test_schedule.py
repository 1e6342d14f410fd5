"""When schedules fire, and what becomes of missed times."""

from __future__ import annotations

import datetime
import itertools
import random
import zoneinfo
from bisect import bisect_left
from collections.abc import Iterator

import pytest

from supervisor.domain.schedule import GRACE, MOST, Misfire, Schedule, firing
from tests.samples import sampled

HOUR, DAY = 3600, 86_400


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


@pytest.mark.parametrize(
    ("schedule", "back", "expected"),
    [
        (every(600), 2 * HOUR, 600.0),
        (cron("0 * * * *"), 2 * HOUR, 3600.0),
        (every(600), GRACE - 1, None),  # hosts may differ by so much
        (cron("0 * * * *"), GRACE - 1, None),
        (cron("0 0 1 * *"), 2 * HOUR, None),  # it is the next time still
    ],
)
def test_a_planned_time_that_no_rule_could_have_named_by_now_is_computed_anew(
    schedule: Schedule, back: float, expected: float | None
) -> None:
    noon = at("2026-07-01 12:00")
    planned = next(schedule.after(noon))

    decision = firing(schedule, planned, noon - back)

    assert (decision.times, decision.missed) == ([], 0)
    assert decision.next_at == (planned if expected is None else noon - back + expected)


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


def local(moment: float, zone: zoneinfo.ZoneInfo) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(moment, zone).replace(tzinfo=None)


def changes(zone: zoneinfo.ZoneInfo) -> Iterator[tuple[int, int]]:
    """When the clocks of a zone change from 2000 to 2037, in Unix seconds, and by how many seconds."""

    def offset(moment: int) -> int:
        return round(local(moment, zone).replace(tzinfo=datetime.UTC).timestamp()) - moment

    for day in range(round(at("2000-01-01")), round(at("2038-01-01")), DAY):
        if offset(day) != offset(day + DAY):
            last = offset(day + DAY)
            moment = day + bisect_left(range(day, day + DAY), True, key=lambda moment: offset(moment) == last)
            yield moment, offset(moment) - offset(moment - 1)


def minute_by_minute(minutes: set[int], hours: set[int] | None, zone: zoneinfo.ZoneInfo, real: range) -> list[float]:
    """What the documentation promises of a line with these hours, or `*`, found by looking at a clock."""

    def matches(time: datetime.datetime) -> bool:
        return time.minute in minutes and (hours is None or (time.hour in hours and time not in shown))

    shown: set[datetime.datetime] = set()
    fires, expected = [], local(real[0], zone)
    for moment in real:
        time = local(moment, zone)
        skipped = []
        while expected < time:
            skipped.append(expected)
            expected += datetime.timedelta(minutes=1)
        if matches(time) or (hours is not None and any(map(matches, skipped))):
            fires.append(float(moment))
        shown.update(skipped, [time])
        expected = time + datetime.timedelta(minutes=1)
    return fires


def all_zones() -> list[list[str]]:
    """Those that change in all kinds of ways, then all others in groups."""
    odd = ["Australia/Lord_Howe", "Antarctica/Troll", "Pacific/Apia", "Africa/Casablanca", "America/Caracas"]
    others = sorted(zoneinfo.available_timezones().difference(odd))
    return [odd, *(others[number::40] for number in range(40))]


def differences(name: str, moment: int, by: int, chance: random.Random) -> list[object]:
    """What lines do around a change of this zone's clocks, where that is not what the minutes say."""
    zone = zoneinfo.ZoneInfo(name)
    begin, length = moment // 60 * 60 - abs(by) - 2 * HOUR, 2 * abs(by) + 4 * HOUR
    real = range(begin, begin + length, 60)
    hour = local(moment - 1, zone).hour
    minute, near = chance.randrange(60), (hour + chance.choice([1, 23])) % 24
    wrong: list[object] = []
    for minutes, hours in (({minute, 30}, None), (set(range(60)), {hour, near}), ({minute}, {(hour + 1) % 24})):
        line = f"{listed(minutes)} {listed(hours)} * * *"
        fires = minute_by_minute(minutes, hours, zone, real)
        for start in (begin - 1, chance.choice(real)):
            found = list(itertools.takewhile(lambda time: time <= real[-1], cron(line, name).after(start)))
            if found != [time for time in fires if time > start]:
                wrong.append((name, line, start, written(fires, name), written(found, name)))
    return wrong


@pytest.mark.timeout(600)
@pytest.mark.parametrize("zones", sampled(all_zones(), 1))
def test_a_cron_line_does_at_every_change_of_a_clock_what_a_look_at_each_minute_says(zones: list[str]) -> None:
    chance = random.Random(zones[0])
    found = [differences(zone, *change, chance) for zone in zones for change in changes(zoneinfo.ZoneInfo(zone))]

    assert found
    assert not any(found), [wrong for wrong in found if wrong]


def listed(numbers: set[int] | None) -> str:
    return "*" if numbers is None else ",".join(map(str, sorted(numbers)))


@pytest.mark.parametrize("line", ["", "* * *", "61 * * * *", "0 0 30 2 *", "tomorrow", "30 3 * * * *"])
def test_a_line_that_is_none_or_never_comes_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"cron line|never comes"):
        next(cron(line).after(0.0))


def test_a_spread_delays_each_time_of_a_name_by_the_same_part_of_it() -> None:
    names = [f"s{number}" for number in range(200)]
    plain = cron("0 3 * * *", "Europe/Berlin")
    nights = list(itertools.islice(plain.after(0.0), 400))
    offsets = []
    for name in names:
        one = plain._replace(name=name, spread=300.0)
        offsets.append(one.offset)
        # A time is after the one before, and never after itself.
        assert next(one.after(nights[0])) == nights[0] + one.offset
        assert next(one.after(nights[0] + one.offset)) == nights[1] + one.offset
    for name in names[:10]:
        one = plain._replace(name=name, spread=300.0)
        assert list(itertools.islice(one.after(0.0), 400)) == [night + one.offset for night in nights]
    assert 0 <= min(offsets) < 15
    assert 285 < max(offsets) < 300
    assert len(set(offsets)) == len(offsets)
    assert plain._replace(name="nightly", spread=300.0).offset == 49.490234375  # on every machine, in every release


def test_an_interval_begins_later_by_the_part_of_its_spread_and_stays_as_long() -> None:
    one = every(100)._replace(spread=1000.0)
    assert one.first(0.0) == 100 + one.offset
    assert firing(one, one.first(0.0), 1.0) == ([], 0, one.first(0.0))  # it is no time that the clock was set back
    assert firing(one, one.first(0.0), one.first(0.0)).next_at == one.first(0.0) + 100
    assert firing(one, one.first(5000.0), 1.0).next_at == one.first(1.0)
    assert one.timing != every(100).timing
