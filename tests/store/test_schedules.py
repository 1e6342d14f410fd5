"""Schedules: each time fires once, whoever looks and whoever is killed."""

from __future__ import annotations

import pytest

from supervisor.domain.job import NewJob
from supervisor.domain.schedule import Misfire, Schedule
from supervisor.maintenance.schedules import FireSchedule
from supervisor.store.base import Filter, Planned, Schedules
from tests.store.kit import NOW, Desk, execute

TIMING = '["0 3 * * *", null, "UTC"]'


@pytest.fixture
def schedules(desk: Desk) -> Schedules:
    return desk.maintenance.schedules


def job(at: float) -> NewJob:
    return NewJob("tidy", '{"a":1}', scheduled_at=at)


def test_a_planned_time_survives_restarts_but_no_other_timing(desk: Desk, schedules: Schedules) -> None:
    schedules.plan("night", TIMING, NOW + 10)

    assert schedules.plan("night", TIMING, NOW + 99).next_at == NOW + 10
    assert desk.operations.schedules.planned() == [Planned("night", TIMING, NOW + 10)]
    assert schedules.plan("night", "other", NOW + 99).next_at == NOW + 99


@pytest.mark.parametrize("value", ["'NaN'", "'infinity'", "'-infinity'", "-1e300", "1e300"])
def test_a_schedule_whose_next_time_is_none_starts_again(desk: Desk, schedules: Schedules, value: str) -> None:
    """Any program may write it."""
    if desk.engine.url.startswith("sqlite:"):
        value = value.replace("'NaN'", "0").replace("'infinity'", "9e999").replace("'-infinity'", "-9e999")
    schedules.plan("night", TIMING, NOW, type="tidy")
    execute(desk.engine.url, f"UPDATE job_schedules SET next_at = {value}, last_at = {value}")
    [shown] = schedules.planned()
    assert (shown.next_at, shown.last_at) == (0, None)
    assert schedules.plan("night", TIMING, NOW + 5, type="tidy").next_at == NOW + 5
    execute(desk.engine.url, f"UPDATE job_schedules SET paused_at = {value}")
    assert schedules.plan("night", TIMING, NOW, type="tidy").paused_at == 0  # it stays paused


def test_firing_inserts_the_jobs_and_moves_on(desk: Desk, schedules: Schedules) -> None:
    planned = schedules.plan("night", TIMING, NOW)

    ids = schedules.fire(planned, [job(NOW - 5), job(NOW)], NOW + 60, NOW + 0.1)

    assert ids is not None
    assert [desk.job(job_id).scheduled_at for job_id in ids] == [NOW - 5, NOW]
    fired = schedules.plan("night", TIMING, 0)
    assert fired == Planned("night", TIMING, NOW + 60, NOW, ids[-1])
    assert schedules.fire(fired, [], NOW + 120, NOW + 60) == []
    assert schedules.plan("night", TIMING, 0) == Planned("night", TIMING, NOW + 120, NOW, ids[-1])


def test_a_time_that_somebody_else_has_fired_inserts_nothing(desk: Desk, schedules: Schedules) -> None:
    planned = schedules.plan("night", TIMING, NOW)
    peer = desk.engine.maintenance()
    assert peer.schedules.fire(planned, [job(NOW)], NOW + 60, NOW)

    assert schedules.fire(planned, [job(NOW)], NOW + 60, NOW) is None
    assert len(desk.claim(["tidy"], 10)) == 1
    peer.close()


def test_a_time_whose_key_an_unfinished_job_has_inserts_nothing_and_moves_on(desk: Desk, schedules: Schedules) -> None:
    keyed = job(NOW)._replace(unique_key="night")
    first = schedules.fire(schedules.plan("night", TIMING, NOW), [keyed, keyed], NOW + 60, NOW)
    assert first is not None
    assert len(first) == 1

    assert schedules.fire(schedules.plan("night", TIMING, 0), [keyed], NOW + 120, NOW + 60) == []
    assert schedules.plan("night", TIMING, 0) == Planned("night", TIMING, NOW + 120, NOW, first[0])

    desk.finish(first[0])
    second = schedules.fire(schedules.plan("night", TIMING, 0), [keyed], NOW + 180, NOW + 120)
    assert second
    assert second != first


def test_a_paused_schedule_does_not_fire_and_keeps_its_time(desk: Desk, schedules: Schedules) -> None:
    planned = schedules.plan("night", TIMING, NOW)

    assert schedules.pause("night", NOW + 1) is True
    assert schedules.pause("night", NOW + 2) is False
    assert schedules.fire(planned, [job(NOW)], NOW + 60, NOW) is None

    assert desk.claim(["tidy"], 10) == []
    paused = schedules.plan("night", TIMING, NOW + 99)
    assert (paused.next_at, paused.paused_at) == (NOW, NOW + 1)
    assert schedules.resume("night", NOW) is True
    assert schedules.fire(planned, [job(NOW)], NOW + 60, NOW)
    assert (schedules.pause("day", NOW), schedules.resume("day", NOW)) == (False, False)


def test_a_schedule_is_run_by_hand_without_moving_on(desk: Desk, schedules: Schedules) -> None:
    schedules.plan("night", TIMING, NOW + 60)
    assert schedules.run("night", NOW) is None  # nobody has told what it enqueues
    assert schedules.run("day", NOW) is None
    schedules.plan("night", TIMING, NOW + 99, type="tidy", payload='{"a":1}')
    schedules.pause("night", NOW)

    job_id = schedules.run("night", NOW)

    assert job_id is not None
    assert (desk.job(job_id).payload, desk.job(job_id).scheduled_at) == ({"a": 1}, NOW)
    [planned] = desk.operations.schedules.planned()
    assert (planned.next_at, planned.last_at, planned.last_job) == (NOW + 60, NOW, job_id)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(("misfire", "missed"), [("once", 1), ("skip", 0)])
def test_a_clock_that_is_set_a_day_ahead_and_back_costs_one_misfire_and_no_silence(
    desk: Desk, schedules: Schedules, misfire: Misfire, missed: int, restarted: bool
) -> None:
    schedule = Schedule("often", "tidy", "{}", None, 600.0, "UTC", misfire)
    duty = FireSchedule(schedules, schedule)
    day = 86_400.0
    fired = []
    for now in (NOW, NOW + 601, NOW + day + 700, NOW + 702, NOW + 1303, NOW + 1903):
        duty = FireSchedule(schedules, schedule) if restarted else duty
        assert (duty.next_at(now) or now) <= now
        fired.append(duty.run(now).done)

    assert fired == [0, 1, missed, 0, 1, 1]
    [planned] = schedules.planned()
    assert planned.next_at == NOW + 2502


@pytest.mark.parametrize(("misfire", "jobs"), [("once", 1), ("skip", 0), ("all", 4)])
def test_a_resumed_schedule_catches_up_as_its_misfire_says(desk: Desk, misfire: Misfire, jobs: int) -> None:
    duty = FireSchedule(desk.maintenance.schedules, Schedule("hourly", "tidy", '{"a":1}', None, 3600.0, "UTC", misfire))
    duty.run(NOW)
    first = duty.next_at(NOW)
    assert first == pytest.approx(NOW + 3600, abs=0.01)

    desk.operations.schedules.pause("hourly", NOW + 1)
    for at in (3601, 3700, 7300, 14300):
        assert duty.run(NOW + at).done == 0
    assert duty.next_at(NOW + 14300) is None  # it is not waited for
    assert duty.rest is not None  # but a change is heard of
    desk.operations.schedules.resume("hourly", NOW)
    assert duty.run(NOW + 14500).done == jobs

    assert duty.rest is None
    assert duty.next_at(NOW + 14500) == pytest.approx(NOW + 5 * 3600, abs=0.01)
    assert desk.operations.jobs.count(Filter(types=("tidy",)), limit=99) == jobs
    [planned] = desk.operations.schedules.planned()
    assert (planned.type, planned.payload) == ("tidy", '{"a":1}')
