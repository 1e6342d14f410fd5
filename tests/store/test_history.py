"""The history by minute and hour: exactly what was finished, whoever writes it, whoever dies, however often it is
tried.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from supervisor.domain.history import DAY, HOUR, KEPT, MINUTE, MOST_TYPES, Minute, QueueSizes
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
    assert found.run(begun).done == 0
    return found


def ran(row: Row, type_: str = "tag", *, times: int = 1, failed: bool = False) -> None:
    for _ in range(times):
        row.ran(type_, 0.5, 0.25, failed=failed)


class TestMinutes:
    def test_a_minute_is_written_when_it_is_over(self, desk: Desk, path: Path, row: Row) -> None:
        duty = historian(desk, path)
        ran(row, times=2)
        ran(row, failed=True)

        assert duty.run(START + 59).done == 0
        assert duty.run(START + 60).done == 1
        assert desk.operations.history.minutes(0) == [Minute(START, "tag", 2, 1, 0, 0, 1.5, 0.75)]

        ran(row, "mail")
        assert duty.run(START + 61).done == 0
        assert duty.run(START + 125).done == 1
        assert desk.operations.history.minutes(START + 1) == [Minute(START + 60, "mail", 1, 0, 0, 0, 0.5, 0.25)]

    def test_how_the_queue_stands_is_written_with_it(self, desk: Desk, path: Path, row: Row) -> None:
        duty = historian(desk, path)
        for _ in range(3):
            desk.put("tag")
        desk.put("tag", at=NOW + 1000)
        desk.put("mail", priority=5)
        desk.claim(want=1)

        assert duty.run(START + 60).done == 2
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
            assert duty.run(START + 60 * minute).done == 0
        assert desk.operations.statistics.log_size() == before
        assert len(desk.operations.history.minutes(0)) == 1

    def test_a_killed_maintainers_successor_goes_on_where_it_was(self, desk: Desk, path: Path, row: Row) -> None:
        first = historian(desk, path)
        ran(row, times=5)
        first.run(START + 60)
        ran(row, times=3)

        second = historian(desk, path, begun=START + 70)  # the same supervisor's
        ran(row, times=2)
        assert second.run(START + 120).done == 1
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
        desk.maintenance.registry.forget("s1", NOW)
        ran(row)

        assert duty.run(START + 60).done == 0
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

        assert duty.run(START + 60).done == 51
        found = {minute.type: minute for minute in desk.operations.history.minutes(0)}
        assert len(found) == 51
        assert set(found) == {f"type-{number:02}" for number in range(10, 60)} | {""}
        assert (found[""].done, found[""].waiting) == (sum(range(1, 11)), 7)
        assert sum(minute.done for minute in found.values()) == sum(range(1, 61))

    @pytest.mark.long_on_postgres
    def test_a_busy_type_has_a_day_of_minutes_and_a_month_of_hours(self, desk: Desk, path: Path) -> None:
        duty = historian(desk, path, begun=HOURS + 1)
        for day in range(33):
            write(desk, [Minute(HOURS + DAY * day + 60 * n, "tag", done=1) for n in range(1440)])
            for hour in range(24):
                tidy(duty, HOURS + DAY * day + HOUR * (hour + 1))
        end = HOURS + 33 * DAY
        at = [minute.at for minute in desk.operations.history.minutes(0)]

        hours = [one for one in at if one < end - 25 * HOUR]
        assert hours == [end - KEPT + HOUR * n for n in range(30 * 24 - 25)]
        assert at[len(hours) :] == [end - 25 * HOUR + 60 * n for n in range(25 * 60)]
        assert {row.done for row in desk.operations.history.added_up(end - KEPT, end, HOUR)} == {60}

        tidy(duty, end + KEPT + HOUR)  # nothing has happened since
        assert desk.operations.history.minutes(0) == []


HOURS = HOUR * (START // HOUR)  # a full hour
LATER = HOURS + 2 * DAY  # when all that was written since has become hours


def write(desk: Desk, minutes: Iterable[Minute]) -> None:
    """As maintainers have written it."""
    before = desk.maintenance.history.counted("s1")
    assert desk.maintenance.history.record("s1", before, f"{before} ", list(minutes))


def tidy(duty: HistoryRecorder, now: float) -> int:
    """Let the duty run until it is done. Returns how many hours it has rolled up."""
    hours = 0
    while duty.run(now).more:
        hours += 1
    return hours


class TestRollingUp:
    def test_counts_are_added_and_queue_sizes_are_the_largest(self, desk: Desk, path: Path) -> None:
        duty = historian(desk, path)
        write(
            desk,
            [
                Minute(HOURS, "tag", 1, 2, 3, 1, 0.5, 0.25),
                Minute(HOURS + 60, "tag", 10, 20, 9, 0, 0.5, 0.25),
                Minute(HOURS + 3540, "tag", 100, 200, 4, 2, 1.0, 0.5),
                Minute(HOURS + 1800, "mail", 5, waiting=7),
                Minute(HOURS + HOUR, "tag", 1000),
            ],
        )
        assert tidy(duty, LATER) == 1

        assert desk.operations.history.minutes(0) == [
            Minute(HOURS, "mail", 5, 0, 7, 0),
            Minute(HOURS, "tag", 111, 222, 9, 2, 2.0, 1.0),
            Minute(HOURS + HOUR, "tag", 1000),
        ]

    def test_an_hour_at_a_time_and_only_what_is_over_a_day_old(self, desk: Desk, path: Path) -> None:
        duty = historian(desk, path)
        write(desk, [Minute(HOURS + HOUR * hour + 60, "tag", done=1) for hour in range(4)])
        now = HOURS + 2 * HOUR + DAY + 11 * MINUTE

        assert [duty.run(now).more for _ in range(3)] == [True, True, False]
        assert [row.at for row in desk.operations.history.minutes(0)] == [
            HOURS,
            HOURS + HOUR,
            HOURS + 2 * HOUR + 60,
            HOURS + 3 * HOUR + 60,
        ]

    def test_two_maintainers_roll_up_the_same_hours_once(self, desk: Desk, path: Path) -> None:
        first, second = historian(desk, path), historian(desk, path)
        write(desk, [Minute(HOURS + 60 * n, "tag", done=1) for n in range(180)])

        for _ in range(5):
            first.run(LATER)
            second.run(LATER)
        assert [(row.at, row.done) for row in desk.operations.history.minutes(0)] == [
            (HOURS, 60),
            (HOURS + HOUR, 60),
            (HOURS + 2 * HOUR, 60),
        ]

    @pytest.mark.fault(27)
    def test_what_comes_late_is_added_to_its_hour(self, desk: Desk, path: Path) -> None:
        """The clock has leapt ahead and back in between."""
        duty = historian(desk, path)
        write(desk, [Minute(HOURS + 60, "tag", done=1, waiting=5)])
        tidy(duty, LATER)
        write(desk, [Minute(HOURS + 60 * n, "tag", done=1, waiting=n) for n in range(3)])
        tidy(duty, HOURS + 180)
        assert sum(row.done for row in desk.operations.history.minutes(0)) == 4
        tidy(duty, LATER + HOUR)

        assert desk.operations.history.minutes(0) == [Minute(HOURS, "tag", done=4, waiting=2)]

    def test_of_many_types_the_busiest_keep_their_names_and_nothing_is_lost(self, desk: Desk, path: Path) -> None:
        duty = historian(desk, path)
        for minute in range(1, 6):
            names = [f"{minute}-{number:02}" for number in range(MOST_TYPES)]
            write(desk, [Minute(HOURS + 60 * minute, name, done=minute) for name in names])
        write(desk, [Minute(HOURS + 60, "", failed=8)])
        tidy(duty, LATER)

        kept = {row.type: row for row in desk.operations.history.minutes(0)}
        assert set(kept) == {f"5-{number:02}" for number in range(MOST_TYPES)} | {""}
        assert (sum(row.done for row in kept.values()), kept[""].failed) == (15 * MOST_TYPES, 8)


class TestSteps:
    def test_a_range_is_added_up_in_steps_from_its_beginning(self, desk: Desk, path: Path) -> None:
        historian(desk, path)
        write(desk, [Minute(HOURS + 60 * n, "tag", done=1, waiting=n, run_seconds=0.5) for n in range(60)])
        write(desk, [Minute(HOURS + 60 * n, "mail", failed=1) for n in range(30, 32)])

        found = desk.operations.history.added_up(HOURS + 120, HOURS + 3000, 900.0)

        assert found == [
            Minute(HOURS + 120, "tag", done=15, waiting=16, run_seconds=7.5),
            Minute(HOURS + 1020, "mail", failed=2),
            Minute(HOURS + 1020, "tag", done=15, waiting=31, run_seconds=7.5),
            Minute(HOURS + 1920, "tag", done=15, waiting=46, run_seconds=7.5),
            Minute(HOURS + 2820, "tag", done=3, waiting=49, run_seconds=1.5),
        ]
        assert desk.operations.history.added_up(HOURS + 120, HOURS + 3000, 900.0, 2) == found[:2]
        assert [row.at for row in desk.operations.history.minutes(HOURS + 60, HOURS + 180)] == [HOURS + 60, HOURS + 120]
        assert len(desk.operations.history.minutes(0, limit=7)) == 7


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
