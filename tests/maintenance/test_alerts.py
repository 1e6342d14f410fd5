"""What alerts tell, how often, and across which interruptions: with the real store and a clock of our own."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from supervisor.domain.alerts import Alert
from supervisor.domain.errors import StoreError
from supervisor.domain.job import Job, Status
from supervisor.domain.schedule import Schedule
from supervisor.engine import open_engine
from supervisor.maintenance.alerts import RaiseAlert
from supervisor.maintenance.schedules import FireSchedule
from supervisor.store.base import JobSelector, Planned
from supervisor.system.scoreboard import Scoreboard
from supervisor.telemetry import configure, unconfigure
from tests.store.kit import NOW, Desk

EVERY = 600.0
NIGHTLY = Schedule("nightly", "report", "{}", None, 3600.0, "UTC", "once")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    configure("json", "error", io.StringIO())
    yield
    unconfigure()


class Ground:
    """A database, and the alerts of its supervisor. `again` starts another maintainer."""

    def __init__(self, folder: Path) -> None:
        self.desk = Desk.at(open_engine(f"sqlite:///{folder}/jobs.db"))
        self.board = Scoreboard.create(folder / "board")
        self.seen = 0

    def alert(self, when: str = "given_up", **fields: Any) -> RaiseAlert:
        values = {"over": 0.0, "type": "mail", "payload": '{"to":"ops"}', "every": EVERY} | fields
        pools = {"tag": JobSelector(("tag",)), "other": JobSelector(("other",))}
        return RaiseAlert(Alert(when, **values), self.desk.maintenance, pools, (NIGHTLY,), self.board, "host")

    def fail(self, *types: str, status: Status = Status.FAILED, **fields: Any) -> list[int]:
        jobs = [self.desk.put(type_, **fields) for type_ in types]
        for job in jobs:
            self.desk.finish(job, status)
        return jobs

    def told(self, duty: RaiseAlert, now: float) -> list[dict[str, Any]]:
        """What it tells at that time: the facts of the jobs that it enqueues."""
        while duty.run(now).more:
            pass
        return [job.payload["alert"] for job in self.new()]

    def new(self) -> list[Job]:
        """The jobs of alerts since the last call."""
        jobs = self.desk.operations.jobs.latest(status=None, type="mail", before=None, limit=100)
        new = sorted((job for job in jobs if job.id > self.seen and job.meta), key=lambda job: job.id)
        self.seen = max([self.seen, *(job.id for job in new)])
        return new


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    yield made
    made.desk.close()


def test_jobs_that_fail_for_good_are_told_by_a_job_with_the_facts(ground: Ground) -> None:
    duty = ground.alert()
    ground.fail("tag")
    assert ground.told(duty, NOW) == [], "it tells of what happens from now on"

    first, second = ground.fail("tag", "tag")
    duty.run(NOW + 1)
    [job] = ground.new()

    assert job.payload == {
        "to": "ops",
        "alert": {
            "when": "given_up",
            "subject": "tag",
            "summary": "2 jobs of the type tag have failed for good",
            "at": NOW + 1,
            "host": "host",
            "jobs": 2,
            "job": second,
            "error": "ValueError: no such picture",
        },
    }
    assert (job.type, job.meta) == ("mail", {"alert": {"when": "given_up", "subject": "tag"}})
    assert first < second


def test_an_attempt_that_will_be_repeated_is_not_told(ground: Ground) -> None:
    duty = ground.alert()
    ground.told(duty, NOW)
    ground.fail("tag", status=Status.QUARANTINED)
    assert ground.told(duty, NOW + 1) == []
    assert [facts["when"] for facts in ground.told(ground.alert("quarantined"), NOW + 1)] == []


def test_quarantined_jobs_are_another_alert(ground: Ground) -> None:
    duty = ground.alert("quarantined")
    ground.told(duty, NOW)
    ground.fail("tag", "other", status=Status.QUARANTINED)
    ground.fail("tag")
    assert [(facts["subject"], facts["jobs"]) for facts in ground.told(duty, NOW + 1)] == [("other", 1), ("tag", 1)]


def test_each_type_is_told_at_most_once_in_a_time_and_nothing_is_left_out(ground: Ground) -> None:
    duty = ground.alert()
    ground.told(duty, NOW)
    ground.fail("tag")
    assert len(ground.told(duty, NOW + 1)) == 1
    ground.fail("tag", "other")
    assert [facts["subject"] for facts in ground.told(duty, NOW + 2)] == ["other"]
    ground.fail("tag")
    assert ground.told(duty, NOW + 300) == []
    assert duty.next_at(NOW + 300) == NOW + 1 + EVERY
    assert ground.told(duty, NOW + EVERY) == []
    assert [(facts["subject"], facts["jobs"]) for facts in ground.told(duty, NOW + 1 + EVERY)] == [("tag", 2)]
    assert ground.told(duty, NOW + 5 * EVERY) == []


def test_what_was_retried_in_the_meantime_is_not_told(ground: Ground) -> None:
    duty = ground.alert()
    ground.told(duty, NOW)
    ground.fail("tag")
    ground.told(duty, NOW + 1)
    [job] = ground.fail("tag")
    ground.told(duty, NOW + 2)
    ground.desk.operations.actions.retry([job], NOW + 3)
    assert ground.told(duty, NOW + 2 * EVERY) == []


@pytest.mark.parametrize("after", ["tell", "hold", "look"])
def test_another_maintainer_neither_repeats_nor_forgets(ground: Ground, after: str) -> None:
    duty = ground.alert()
    ground.told(duty, NOW)
    ground.fail("tag")
    if after != "look":
        assert len(ground.told(duty, NOW + 1)) == 1
        if after == "hold":
            ground.fail("tag")
            assert ground.told(duty, NOW + 2) == []

    again = ground.alert()

    expected = {"tell": 0, "hold": 0, "look": 1}[after]
    assert len(ground.told(again, NOW + 3)) == expected
    assert len(ground.told(again, NOW + 3 + EVERY)) == (1 if after == "hold" else 0)


def test_of_two_supervisors_one_tells(ground: Ground) -> None:
    one, other = ground.alert(), ground.alert()
    ground.told(one, NOW)
    ground.told(other, NOW)
    ground.fail("tag")
    assert len(ground.told(one, NOW + 1)) == 1
    assert ground.told(other, NOW + 1) == []
    ground.fail("other")
    assert len(ground.told(other, NOW + 2)) == 1
    assert ground.told(one, NOW + 2) == []


def test_a_job_that_cannot_be_inserted_is_told_later(ground: Ground) -> None:
    duty = ground.alert()
    ground.told(duty, NOW)
    ground.fail("tag")
    path = ground.desk.engine.url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TRIGGER no BEFORE INSERT ON jobs BEGIN SELECT RAISE(ABORT, 'not today'); END")
        with pytest.raises(StoreError):
            duty.run(NOW + 1)
        other.execute("DROP TRIGGER no")
    assert len(ground.told(duty, NOW + 2)) == 1


def test_jobs_of_alerts_never_raise_one_and_others_of_their_type_do(ground: Ground) -> None:
    duty, other = ground.alert(), ground.alert(type="webhook")
    ground.told(duty, NOW)
    ground.told(other, NOW)
    ground.fail("tag")
    duty.run(NOW + 1)
    [job] = ground.new()
    ground.desk.finish(job.id, Status.FAILED, at=NOW + 2)
    assert ground.told(duty, NOW + 2 * EVERY) == []
    other.run(NOW + 2 * EVERY)
    webhooks = ground.desk.operations.jobs.latest(status=None, type="webhook", before=None, limit=9)
    assert [job.payload["alert"]["subject"] for job in webhooks] == ["tag"]
    ground.fail("mail")  # one that the application has enqueued
    assert [facts["subject"] for facts in ground.told(duty, NOW + 4 * EVERY)] == ["mail"]


def test_only_some_types(ground: Ground) -> None:
    duty = ground.alert(only=("tag",))
    ground.told(duty, NOW)
    ground.fail("tag", "other")
    assert [facts["subject"] for facts in ground.told(duty, NOW + 1)] == ["tag"]


def test_a_broken_pool_is_told_again_each_time_but_not_while_the_job_waits(ground: Ground) -> None:
    duty = ground.alert("pool_broken")
    assert ground.told(duty, NOW) == []
    ground.board.post({"pools": {"tag": {"broken": True, "problem": "no such module"}, "other": {"broken": False}}})
    duty.run(NOW + 5)
    [job] = ground.new()
    assert job.payload["alert"]["summary"] == "the pool tag cannot start its workers: no such module"
    assert ground.told(duty, NOW + 10) == []
    assert ground.told(duty, NOW + 5 + EVERY) == [], "the last one still waits"
    ground.desk.finish(job.id, at=NOW + 6 + EVERY)
    assert ground.told(duty, NOW + 6 + EVERY) == []
    assert len(ground.told(duty, NOW + 6 + 2 * EVERY)) == 1
    ground.board.post({"pools": {}})
    assert ground.told(duty, NOW + 9 * EVERY) == []


def test_a_backlog_is_told_when_its_oldest_job_is_too_old(ground: Ground) -> None:
    duty = ground.alert("oldest_due", over=300.0)
    assert ground.told(duty, NOW) == []
    ground.desk.put("tag", at=NOW)
    assert ground.told(duty, NOW + 1) == []
    assert duty.next_at(NOW + 1) == pytest.approx(NOW + 300, abs=0.01)
    [facts] = ground.told(duty, NOW + 301)
    assert (facts["subject"], facts["summary"]) == ("tag", "jobs of the pool tag have been due for 5.02m")


def test_a_missed_schedule_is_told_before_it_fires(ground: Ground) -> None:
    duty, fire = ground.alert("schedule_missed"), FireSchedule(ground.desk.maintenance.schedules, NIGHTLY)
    fire.run(NOW)
    assert ground.told(duty, NOW) == []
    assert duty.next_at(NOW) == pytest.approx(NOW + 3660, abs=0.01)

    later = NOW + 7200
    [facts] = ground.told(ground.alert("schedule_missed"), later)
    assert (facts["subject"], facts["late"]) == ("nightly", 3600.0)
    fire.run(later)
    assert ground.told(duty, later + 2 * EVERY) == []


def test_a_paused_schedule_is_not_told_as_missed(ground: Ground) -> None:
    FireSchedule(ground.desk.maintenance.schedules, NIGHTLY).run(NOW)
    ground.desk.operations.schedules.pause("nightly", NOW)

    assert ground.told(ground.alert("schedule_missed"), NOW + 7200) == []


def test_a_schedule_without_success_is_told_until_a_job_succeeds(ground: Ground) -> None:
    duty, store = ground.alert("no_success"), ground.desk.maintenance.schedules
    FireSchedule(store, NIGHTLY._replace(expect_within=7200.0)).run(NOW)
    store.define(
        Planned("made", "[]", 4e9, type="report", expect_within=1e4, expected_from=NOW, definition="{}"), None, 0
    )
    store.plan("old", "[]", NOW, expect_within=1.0, expected_from=NOW)  # of no configuration any more
    assert ground.told(duty, NOW) == []
    assert duty.next_at(NOW) == pytest.approx(NOW + 7200, abs=0.01)

    job = store.run("nightly", NOW + 10)
    assert job is not None
    [facts] = ground.told(duty, NOW + 7201)
    assert (facts["subject"], facts["silent"], facts["job"]) == ("nightly", 7201.0, job)
    assert facts["summary"] == "no job of the schedule nightly has succeeded for 2h"
    ground.desk.finish(job, at=NOW + 9000)
    [facts] = ground.told(duty, NOW + 1e4 + 1)
    assert facts["subject"] == "made"
    store.pause("made", NOW)
    assert ground.told(ground.alert("no_success", every=1.0), NOW + 1.1e4) == []


def test_a_clock_that_is_set_back_does_not_silence_an_alert(ground: Ground) -> None:
    duty = ground.alert()
    ground.told(duty, NOW)
    ground.fail("tag")
    assert len(ground.told(duty, NOW + 1_000_000)) == 1
    ground.fail("tag")
    assert len(ground.told(duty, NOW)) == 1


def test_many_failed_attempts_are_read_in_bounded_steps(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.maintenance.alerts._ATTEMPTS", 3)
    duty = ground.alert()
    ground.told(duty, NOW)
    ground.fail(*["tag"] * 10)
    assert duty.run(NOW + 1).more
    [first] = [job.payload["alert"]["jobs"] for job in ground.new()]
    assert ground.told(duty, NOW + 1) == []
    [rest] = ground.told(duty, NOW + 1 + EVERY)
    assert (first, rest["jobs"]) == (3, 7)


def test_the_state_is_small(ground: Ground) -> None:
    duty = ground.alert(every=1.0)
    ground.told(duty, NOW)
    for second in range(20):
        ground.fail(f"type-{second}")
        ground.told(duty, NOW + 2 * second)
    state = ground.desk.maintenance.finished.alerts.state(duty._alert.id)
    assert state is not None
    assert len(json.loads(state)["told"]) == 1
