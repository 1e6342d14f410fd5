"""A paused schedule fires nothing; resumed, it makes up for what it has missed as its misfire says."""

from __future__ import annotations

import pytest

from supervisor.domain.schedule import Misfire, Schedule
from supervisor.maintenance.schedules import FireSchedule
from supervisor.store.base import Filter
from tests.store.kit import NOW, Desk


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
    desk.operations.schedules.resume("hourly")
    assert duty.run(NOW + 14500).done == jobs

    assert duty.rest is None
    assert duty.next_at(NOW + 14500) == pytest.approx(NOW + 5 * 3600, abs=0.01)
    assert desk.operations.jobs.count(Filter(types=("tidy",)), limit=99) == jobs
    [planned] = desk.operations.schedules.planned()
    assert (planned.type, planned.payload) == ("tidy", '{"a":1}')
