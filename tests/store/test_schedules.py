"""Schedules: each time fires once, whoever looks and whoever is killed."""

from __future__ import annotations

import pytest

from supervisor.domain.job import NewJob
from supervisor.store.base import Planned, Schedules
from tests.store.kit import NOW, Desk

TIMING = '["0 3 * * *", null, "UTC"]'


@pytest.fixture
def schedules(desk: Desk) -> Schedules:
    return desk.maintenance.schedules


def job(at: float) -> NewJob:
    return NewJob("tidy", '{"a":1}', scheduled_at=at)


def test_a_planned_time_survives_restarts(desk: Desk, schedules: Schedules) -> None:
    schedules.plan("night", TIMING, NOW + 10)

    assert schedules.plan("night", TIMING, NOW + 99).next_at == NOW + 10
    assert desk.operations.schedules.planned() == [Planned("night", TIMING, NOW + 10)]


def test_another_timing_starts_anew(schedules: Schedules) -> None:
    schedules.plan("night", TIMING, NOW + 10)

    assert schedules.plan("night", "other", NOW + 99).next_at == NOW + 99


def test_firing_inserts_the_jobs_and_moves_on(desk: Desk, schedules: Schedules) -> None:
    planned = schedules.plan("night", TIMING, NOW)

    ids = schedules.fire(planned, [job(NOW - 5), job(NOW)], NOW + 60, NOW + 0.1)

    assert ids is not None
    assert [desk.job(job_id).scheduled_at for job_id in ids] == [NOW - 5, NOW]
    assert schedules.plan("night", TIMING, 0) == Planned("night", TIMING, NOW + 60, NOW, ids[-1])


def test_a_time_that_somebody_else_has_fired_inserts_nothing(desk: Desk, schedules: Schedules) -> None:
    planned = schedules.plan("night", TIMING, NOW)
    peer = desk.engine.maintenance()
    assert peer.schedules.fire(planned, [job(NOW)], NOW + 60, NOW)

    assert schedules.fire(planned, [job(NOW)], NOW + 60, NOW) is None
    assert len(desk.claim(["tidy"], 10)) == 1
    peer.close()


def test_a_time_without_jobs_only_moves_on(desk: Desk, schedules: Schedules) -> None:
    planned = schedules.plan("night", TIMING, NOW)

    assert schedules.fire(planned, [], NOW + 60, NOW) == []
    assert schedules.plan("night", TIMING, 0).next_at == NOW + 60
    assert desk.claim(["tidy"], 10) == []
