"""Schedules that are made and changed at run time, and what is known of their success."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from supervisor import AsyncQueue, Queue
from supervisor.config.reader import schedule_of
from supervisor.domain.errors import Conflict, InvalidJob, QueueError
from supervisor.domain.job import Status
from supervisor.domain.schedule import Schedule
from supervisor.maintenance.schedules import FireSchedule, FireSchedulesMade
from supervisor.ops import commands
from supervisor.store.base import Filter, Planned
from supervisor.telemetry import configure, unconfigure
from tests.store.kit import NOW, Desk, execute

HOURLY: dict[str, Any] = {"type": "tidy", "every": "1h", "payload": {"a": 1}, "priority": 7}


@pytest.fixture(autouse=True)
def log() -> Iterator[io.StringIO]:
    written = io.StringIO()
    configure("json", "info", written)
    yield written
    unconfigure()


@pytest.fixture
def set_(desk: Desk) -> Callable[..., bool]:
    def set_(name: str, mode: Any = "set", now: float = NOW, **keys: Any) -> bool:
        return commands.set_schedule(desk.operations, name, keys, now, mode)

    return set_


@pytest.fixture
def maintainers(desk: Desk) -> Iterator[list[FireSchedulesMade]]:
    """Those of two supervisors."""
    other = desk.engine.maintenance()
    stores = (desk.maintenance.schedules, other.schedules)
    yield [FireSchedulesMade(schedules, schedule_of, expecting=False) for schedules in stores]
    other.close()


def look(desk: Desk, duties: list[FireSchedulesMade], now: float) -> list[int]:
    """What each fires at that time; what was changed is known by then."""
    for duty in duties:
        duty.heed(desk.operations.controls.current().schedules)
    return [duty.run(now).done for duty in duties]


def planned(desk: Desk, name: str = "made") -> Planned:
    found = desk.operations.schedules.one(name)
    assert found is not None
    return found


def count(desk: Desk) -> int:
    return desk.operations.jobs.count(Filter(types=("tidy", "other")), limit=99)


def test_one_that_is_made_fires_each_time_once_over_several_supervisors(
    desk: Desk, set_: Callable[..., bool], maintainers: list[FireSchedulesMade]
) -> None:
    assert look(desk, maintainers, NOW) == [0, 0]
    assert set_("made", "add", **HOURLY)
    assert look(desk, maintainers, NOW) == [0, 0]
    assert [duty.next_at(NOW) for duty in maintainers] == [pytest.approx(NOW + 3600, abs=0.01)] * 2
    for hour in (1, 2, 3):
        assert sum(look(desk, maintainers if hour % 2 else maintainers[::-1], NOW + hour * 3600 + 1)) == 1
    [job] = desk.claim(["tidy"], 1, now=NOW + 9e4)
    assert (job.payload, desk.job(job.job_id).priority) == ('{"a":1}', 7)
    assert desk.job(job.job_id).scheduled_at == NOW + 3600


def test_what_is_changed_or_removed_is_not_fired_as_it_was_though_nobody_has_looked_since(
    desk: Desk, set_: Callable[..., bool], maintainers: list[FireSchedulesMade]
) -> None:
    set_("made", **HOURLY)
    set_("gone", **HOURLY)
    look(desk, maintainers, NOW)
    assert set_("made", "change", type="other")
    commands.remove_schedule(desk.operations, "gone", NOW)

    assert [duty.run(NOW + 3601).done for duty in maintainers] == [0, 0]  # they know the old ones
    assert desk.operations.schedules.one("gone") is None
    assert sum(look(desk, maintainers, NOW + 3602)) == 1
    assert [desk.job(claim.job_id).type for claim in desk.claim(["tidy", "other"], 9, now=NOW + 9e4)] == ["other"]


def test_a_change_keeps_the_next_time_unless_it_says_another_and_the_other_keys(
    desk: Desk, set_: Callable[..., bool]
) -> None:
    set_("made", **HOURLY)
    assert not set_("made", now=NOW + 5, **HOURLY)  # as it was
    assert set_("made", "change", now=NOW + 10, priority=None, unique_key="k")
    assert (planned(desk).next_at, planned(desk).priority, planned(desk).payload) == (NOW + 3600, 0, '{"a":1}')
    assert set_("made", "change", now=NOW + 10, cron="0 3 * * *", timezone="Europe/Berlin")
    assert planned(desk).definition == (
        '{"cron": "0 3 * * *", "payload": {"a": 1}, "timezone": "Europe/Berlin", "type": "tidy", "unique_key": "k"}'
    )
    assert set_("made", "change", now=NOW + 10, every="2h")
    assert planned(desk).next_at == NOW + 10 + 7200


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        ({"type": "tidy"}, "schedule"),
        ({"every": "1h"}, "schedule"),
        ({**HOURLY, "every": "0s"}, "every"),
        ({**HOURLY, "cron": "* * * * *"}, "every"),
        ({**HOURLY, "mispelt": 1}, "mispelt"),
        ({**HOURLY, "payload": object()}, "payload"),
        ({**HOURLY, "spread": -1}, "spread"),
    ],
)
def test_what_the_file_could_not_say_is_refused_and_nothing_written(
    desk: Desk, set_: Callable[..., bool], keys: dict[str, Any], field: str
) -> None:
    for name, wrong in (("made", field), ("Wrong name", "name")):
        with pytest.raises(InvalidJob) as refused:
            set_(name, **(keys if wrong == field else HOURLY))
        assert refused.value.field == wrong
    assert desk.operations.schedules.planned() == []


def test_one_of_a_file_is_refused_and_takes_over_what_has_its_name(
    desk: Desk, set_: Callable[..., bool], maintainers: list[FireSchedulesMade], log: io.StringIO
) -> None:
    set_("made", **HOURLY)
    look(desk, maintainers, NOW)
    of_file = Schedule("made", "other", "{}", None, 60.0, "UTC", "once")
    FireSchedule(desk.maintenance.schedules, of_file).run(NOW)

    assert "schedule_taken_over" in log.getvalue()
    for act in (lambda: set_("made", **HOURLY), lambda: commands.remove_schedule(desk.operations, "made", NOW)):
        with pytest.raises(Conflict, match="the schedule made is in a configuration file"):
            act()
    assert [duty.run(NOW + 4000).done for duty in maintainers] == [0, 0]
    assert (planned(desk).type, planned(desk).definition) == ("other", None)
    assert FireSchedule(desk.maintenance.schedules, of_file).run(NOW + 60).done == 1


def test_add_changes_nothing_and_change_makes_nothing_and_of_two_changes_none_is_lost(
    desk: Desk, set_: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(QueueError, match="there is no schedule 'made'"):
        set_("made", "change", priority=1)
    set_("made", "add", **HOURLY)
    with pytest.raises(Conflict, match="there is a schedule made already"):
        set_("made", "add", **HOURLY)

    define, raced = desk.operations.schedules.define, []

    def second(*args: Any) -> bool:
        if not raced:
            raced.append(set_.__call__)
            assert set_("made", "change", unique_key="theirs")
        return define(*args)

    monkeypatch.setattr(desk.operations.schedules, "define", second)
    assert set_("made", "change", priority=-1)
    assert '"priority": -1' in (planned(desk).definition or "")
    assert '"unique_key": "theirs"' in (planned(desk).definition or "")


def test_a_definition_that_a_stranger_has_spoilt_holds_up_no_other(
    desk: Desk, set_: Callable[..., bool], maintainers: list[FireSchedulesMade], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Seconds: a busy machine must not leave some for the next run, nor reach it while we look.
    monkeypatch.setattr("supervisor.maintenance.schedules.ITEMS_BOUND", 60.0)
    monkeypatch.setattr("supervisor.maintenance.scheduler.FIRST_PAUSE", 30.0)
    for name in ("garbage", "endless", "list", "made", "never"):
        set_(name, **HOURLY)
    for name, definition in (("garbage", "{"), ("endless", '{"type": "tidy", "every": "0s"}'), ("list", "[1]")):
        execute(desk.engine.url, f"UPDATE job_schedules SET definition = '{definition}' WHERE name = '{name}'")
    execute(desk.engine.url, "UPDATE job_schedules SET next_at = -1e300 WHERE name = 'never'")
    duty = maintainers[0]
    look(desk, [duty], NOW)
    duty.heed(99)
    result = duty.run(NOW + 3601)
    assert result.done == 1
    assert "schedule " in result.problem
    assert (duty.next_at(NOW + 3601) or 0) > NOW + 3601  # it rests until then
    assert set_("never", "change", now=NOW, priority=1)
    assert planned(desk, "never").next_at == NOW + 3600


def test_a_paused_one_catches_up_and_one_that_is_run_by_hand_has_its_priority(
    desk: Desk, set_: Callable[..., bool], maintainers: list[FireSchedulesMade]
) -> None:
    set_("made", misfire="all", **HOURLY)
    look(desk, maintainers, NOW)
    commands.pause_schedule(desk.operations, "made", True, NOW)
    assert look(desk, maintainers, NOW + 7300) == [0, 0]
    job = commands.run_schedule(desk.operations, "made", NOW + 7300)
    assert desk.job(job).priority == 7
    commands.pause_schedule(desk.operations, "made", False, NOW + 7300)
    assert sum(look(desk, maintainers, NOW + 7301)) == 2


def test_programs_make_change_and_remove_schedules(desk: Desk) -> None:
    with Queue(desk.engine.url) as queue:
        assert queue.schedules.set("made", type="tidy", every="1h") is True
        assert queue.schedules.set("made", type="tidy", every="1h") is False
        assert [one.name for one in queue.schedules.list()] == ["made"]
        queue.schedules.remove("made")
        with pytest.raises(QueueError):
            queue.schedules.remove("made")

    async def main() -> None:
        async with AsyncQueue(desk.engine.url) as queue:
            assert await queue.schedules.set("made", type="tidy", cron="0 3 * * *")
            assert [one.type for one in await queue.schedules.list()] == ["tidy"]
            await queue.schedules.remove("made")
            assert await queue.schedules.list() == []

    asyncio.run(main())


def fired(desk: Desk, at: float) -> int:
    found = planned(desk)
    job = desk.operations.schedules.run("made", at)
    assert job is not None
    assert found.expect_within is not None
    return job


def since(desk: Desk) -> float:
    desk.maintenance.schedules.note_successes()
    return (planned(desk).expected_from or 0.0) - NOW


def test_success_is_expected_from_the_last_one_on_also_of_jobs_that_take_long(
    desk: Desk, set_: Callable[..., bool]
) -> None:
    set_("made", **HOURLY, expect_within="1m")
    assert (since(desk), planned(desk).silent(NOW + 60), planned(desk).silent(NOW + 61)) == (0, 0, 61)
    first, second, third, fourth = (fired(desk, NOW + n) for n in range(4))
    desk.finish(second, at=NOW + 50)
    assert since(desk) == 50
    desk.finish(third, Status.FAILED, at=NOW + 70)
    assert since(desk) == 50
    desk.finish(first, at=NOW + 80)  # three others were fired after it
    assert since(desk) == 80
    desk.operations.actions.retry([third], NOW + 85)
    desk.finish(third, at=NOW + 90)
    assert since(desk) == 90
    desk.operations.actions.cancel(fourth, NOW)
    desk.operations.actions.delete([fourth])
    assert (since(desk), desk.maintenance.schedules._connection.rows("SELECT watched FROM job_schedules")) == (
        90,
        [("",)],
    )
    set_("made", **HOURLY)
    assert (planned(desk).expected_from, planned(desk).silent(NOW + 9e9)) == (None, 0)


def test_what_is_watched_is_bounded_and_failures_make_room(desk: Desk, set_: Callable[..., bool]) -> None:
    set_("made", **HOURLY, expect_within="1m")
    jobs = [fired(desk, NOW) for _ in range(150)]
    [(watched,)] = desk.maintenance.schedules._connection.rows("SELECT watched FROM job_schedules")
    assert 200 <= len(watched) < 220
    for job in jobs[:100]:
        desk.finish(job, Status.FAILED)
    assert since(desk) == 0
    last = fired(desk, NOW)
    desk.finish(last, at=NOW + 9)
    assert since(desk) == 9


def test_ids_that_a_stranger_has_written_are_none(desk: Desk, set_: Callable[..., bool]) -> None:
    set_("made", **HOURLY, expect_within="1m")
    execute(desk.engine.url, f"UPDATE job_schedules SET watched = ' x -1 [ {'9' * 40} ²'")
    job = fired(desk, NOW)
    desk.finish(job, at=NOW + 9)
    assert since(desk) == 9


def test_a_resumed_one_is_not_silent_for_the_time_of_its_pause(desk: Desk, set_: Callable[..., bool]) -> None:
    set_("made", **HOURLY, expect_within="1m")
    commands.pause_schedule(desk.operations, "made", True, NOW + 30)
    assert planned(desk).silent(NOW + 100) == 0
    commands.pause_schedule(desk.operations, "made", False, NOW + 100)
    assert (planned(desk).silent(NOW + 160), planned(desk).silent(NOW + 161)) == (0, 61)
    commands.pause_schedule(desk.operations, "made", False, NOW + 150)
    assert planned(desk).silent(NOW + 161) == 61
