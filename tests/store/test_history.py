"""The last hour in minutes: exactly what was finished, whoever writes it, whoever dies, however often it is tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.domain.history import KEPT, MINUTE, Minute, QueueSizes
from supervisor.domain.job import Status
from supervisor.maintenance.history import HistoryRecorder
from supervisor.system.counters import Row, shared
from tests.store.kit import NOW, T0, Desk, supervisor_record

START = NOW // MINUTE * MINUTE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tallies"


@pytest.fixture
def row(path: Path) -> Row:
    return shared(path, 1)


def historian(desk: Desk, path: Path, name: str = "s1", begun: float = START + 1) -> HistoryRecorder:
    """A maintainer's, as it is after its start."""
    desk.maintenance.registry.register(supervisor_record(name, desk.engine, "/nowhere"))
    found = HistoryRecorder(desk.maintenance.history, desk.maintenance.backlog, name, path)
    assert found.run(begun).minutes == 0
    return found


def ran(row: Row, type_: str = "tag", *, times: int = 1, failed: bool = False) -> None:
    for _ in range(times):
        row.ran(type_, 0.5, 0.25, failed=failed)


class TestMinutes:
    def test_a_minute_is_written_when_it_is_over(self, desk: Desk, path: Path, row: Row) -> None:
        duty = historian(desk, path)
        ran(row, times=2)
        ran(row, failed=True)

        assert duty.run(START + 59).minutes == 0
        assert duty.run(START + 60).minutes == 1
        assert desk.operations.history.minutes(0) == [Minute(START, "tag", 2, 1, 0, 0, 1.5, 0.75)]

        ran(row, "mail")
        assert duty.run(START + 61).minutes == 0
        assert duty.run(START + 125).minutes == 1
        assert desk.operations.history.minutes(START + 1) == [Minute(START + 60, "mail", 1, 0, 0, 0, 0.5, 0.25)]

    def test_how_the_queue_stands_is_written_with_it(self, desk: Desk, path: Path, row: Row) -> None:
        duty = historian(desk, path)
        for _ in range(3):
            desk.put("tag")
        desk.put("tag", at=NOW + 1000)
        desk.put("mail", priority=5)
        desk.claim(want=1)

        assert duty.run(START + 60).minutes == 2
        assert desk.operations.history.minutes(0) == [
            Minute(START, "mail", waiting=1),
            Minute(START, "tag", waiting=2, running=1),
        ]

    def test_nothing_is_written_for_a_minute_without_anything(self, desk: Desk, path: Path, row: Row) -> None:
        duty = historian(desk, path)
        ran(row)
        desk.put("tag", at=NOW + 9000)  # waits for its time, so nobody waits for it
        duty.run(START + 60)
        before = desk.operations.statistics.log_size()

        for minute in range(2, 20):
            assert duty.run(START + 60 * minute).minutes == 0
        assert desk.operations.statistics.log_size() == before
        assert len(desk.operations.history.minutes(0)) == 1

    def test_a_killed_maintainers_successor_goes_on_where_it_was(self, desk: Desk, path: Path, row: Row) -> None:
        first = historian(desk, path)
        ran(row, times=5)
        first.run(START + 60)
        ran(row, times=3)

        second = historian(desk, path, begun=START + 70)  # the same supervisor's
        ran(row, times=2)
        assert second.run(START + 120).minutes == 1
        assert [minute.done for minute in desk.operations.history.minutes(0)] == [5, 5]

    def test_a_successor_that_starts_in_another_minute_loses_nothing_either(
        self, desk: Desk, path: Path, row: Row
    ) -> None:
        historian(desk, path)
        ran(row, times=5)

        second = historian(desk, path, begun=START + 190)
        second.run(START + 240)
        assert sum(minute.done for minute in desk.operations.history.minutes(0)) == 5

    def test_whoever_dies_between_the_sums_and_the_commit_counts_nothing_twice(
        self, desk: Desk, path: Path, row: Row
    ) -> None:
        first, second = historian(desk, path), historian(desk, path)
        ran(row, times=5)
        before = desk.maintenance.history.counted("s1")
        first.run(START + 60)

        # What the dead one had read and would have written.
        assert desk.maintenance.history.record("s1", before, "{}", [Minute(START, "tag", 5)]) is False
        second.run(START + 60)
        assert [minute.done for minute in desk.operations.history.minutes(0)] == [5]

    def test_a_reload_in_the_middle_of_a_minute_loses_nothing(self, desk: Desk, path: Path, row: Row) -> None:
        duty = historian(desk, path)
        ran(row, times=5)
        duty.close(START + 30)
        ran(row, times=2)
        duty.run(START + 60)

        assert desk.operations.history.minutes(0) == [Minute(START, "tag", 7, 0, 0, 0, 3.5, 1.75)]

    def test_a_clock_that_goes_back_writes_nothing_twice(self, desk: Desk, path: Path, row: Row) -> None:
        duty = historian(desk, path)
        ran(row, times=5)
        duty.run(START + 60)
        for at in (START - 7200, START - 7100, START + 60, START + 120):
            duty.run(at)

        assert sum(minute.done for minute in desk.operations.history.minutes(-1e9)) == 5

    def test_a_supervisor_that_is_not_registered_writes_nothing(self, desk: Desk, path: Path, row: Row) -> None:
        duty = historian(desk, path)
        desk.maintenance.registry.forget("s1")
        ran(row)

        assert duty.run(START + 60).minutes == 0
        assert desk.operations.history.minutes(0) == []


class TestTwoSupervisors:
    def test_what_they_finish_adds_up_and_how_the_queue_stands_does_not(self, desk: Desk, tmp_path: Path) -> None:
        duties = []
        for name in ("s1", "s2"):
            path = tmp_path / name
            duties.append(historian(desk, path, name))
            ran(shared(path, 1), times=3)
        for _ in range(4):
            desk.put("tag")

        for duty in duties:
            duty.run(START + 60)
        assert desk.operations.history.minutes(0) == [Minute(START, "tag", 6, 0, 4, 0, 3.0, 1.5)]


class TestBounds:
    def test_the_busiest_types_have_rows_and_the_rest_one_together(self, desk: Desk, path: Path) -> None:
        duty = historian(desk, path)
        for number in range(60):
            ran(shared(path, number), f"type-{number:02}", times=number + 1)
        for _ in range(7):
            desk.put("waits")

        assert duty.run(START + 60).minutes == 51
        found = {minute.type: minute for minute in desk.operations.history.minutes(0)}
        assert len(found) == 51
        assert set(found) == {f"type-{number:02}" for number in range(10, 60)} | {""}
        assert (found[""].done, found[""].waiting) == (sum(range(1, 11)), 7)
        assert sum(minute.done for minute in found.values()) == sum(range(1, 61))

    def test_what_is_older_than_an_hour_goes(self, desk: Desk, path: Path, row: Row) -> None:
        duty = historian(desk, path)
        for minute in range(1, 100):
            ran(row)
            duty.run(START + 60 * minute)
        kept = [minute.at for minute in desk.operations.history.minutes(0)]
        assert kept[0] >= START + 60 * 99 - KEPT
        assert len(kept) == 60

        duty.run(START + 60 * 99 + KEPT + 1200)  # nothing has happened since
        assert desk.operations.history.minutes(0) == []


class TestStanding:
    def test_due_and_running_jobs_by_type(self, desk: Desk) -> None:
        desk.put("tag", at=T0 + 5)
        desk.put("tag", at=T0 + 3, priority=7, requires="gpu")
        desk.put("tag", at=NOW + 60)
        desk.put("later", at=NOW + 60)
        desk.finish(desk.put("over"), Status.DONE)
        desk.put("mail")
        desk.claim(["mail"])

        assert desk.maintenance.backlog.queue_sizes(NOW) == [QueueSizes("mail", 0, 1), QueueSizes("tag", 2, 0)]
        assert desk.maintenance.backlog.queue_sizes(NOW + 60)[0] == QueueSizes("later", 1, 0)
