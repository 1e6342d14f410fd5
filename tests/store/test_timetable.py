"""Schedules: each time fires once, whoever looks and whoever is killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from supervisor.domain.job import NewJob
from supervisor.store.base import Planned, Timetable
from tests.store.kit import NOW, Desk

TIMING = '["0 3 * * *", null, "UTC"]'


@pytest.fixture
def timetable(desk: Desk) -> Iterator[Timetable]:
    opened = desk.engine.timetable()
    yield opened
    opened.close()


def job(at: float) -> NewJob:
    return NewJob("tidy", '{"a":1}', scheduled_at=at)


def test_a_planned_time_survives_restarts(desk: Desk, timetable: Timetable) -> None:
    timetable.plan("night", TIMING, NOW + 10)

    assert timetable.plan("night", TIMING, NOW + 99).next_at == NOW + 10
    assert desk.operations.schedules() == [Planned("night", TIMING, NOW + 10)]


def test_another_timing_starts_anew(timetable: Timetable) -> None:
    timetable.plan("night", TIMING, NOW + 10)

    assert timetable.plan("night", "other", NOW + 99).next_at == NOW + 99


def test_firing_inserts_the_jobs_and_moves_on(desk: Desk, timetable: Timetable) -> None:
    planned = timetable.plan("night", TIMING, NOW)

    ids = timetable.fire(planned, [job(NOW - 5), job(NOW)], NOW + 60, NOW + 0.1)

    assert ids is not None
    assert [desk.job(job_id).scheduled_at for job_id in ids] == [NOW - 5, NOW]
    assert timetable.plan("night", TIMING, 0) == Planned("night", TIMING, NOW + 60, NOW, ids[-1])


def test_a_time_that_somebody_else_has_fired_inserts_nothing(desk: Desk, timetable: Timetable) -> None:
    planned = timetable.plan("night", TIMING, NOW)
    peer = desk.engine.timetable()
    assert peer.fire(planned, [job(NOW)], NOW + 60, NOW)

    assert timetable.fire(planned, [job(NOW)], NOW + 60, NOW) is None
    assert len(desk.claim(["tidy"], 10)) == 1
    peer.close()


def test_a_time_without_jobs_only_moves_on(desk: Desk, timetable: Timetable) -> None:
    planned = timetable.plan("night", TIMING, NOW)

    assert timetable.fire(planned, [], NOW + 60, NOW) == []
    assert timetable.plan("night", TIMING, 0).next_at == NOW + 60
    assert desk.claim(["tidy"], 10) == []
