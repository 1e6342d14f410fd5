"""What was to be inserted is inserted, or it is said why not: nothing is left out in silence."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from supervisor.domain.errors import Conflict
from supervisor.domain.job import NewJob, Status
from supervisor.domain.settlement import done
from supervisor.store.sql.connection import RowRefused
from tests.store.kit import NOW, T0, Desk, execute

CHILD = NewJob("child", "{}", scheduled_at=T0)
ALERT = NewJob("mail", "{}", scheduled_at=T0, extra={"meta": '{"alert":1}'})


@pytest.mark.parametrize("taken", [1, 2, 5, 3000])
def test_ids_that_others_have_taken_are_passed_over(desk: Desk, taken: int) -> None:
    """Rows with ids of their own, as from a restored copy, lie ahead of the sequence."""

    def take() -> int:
        latest = desk.put()
        numbers = f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {taken}) "
        execute(desk.engine.url, f"{numbers} INSERT INTO jobs (id, type) SELECT {latest} + i, 'copied' FROM n")
        return latest + taken

    desk.put()
    claim = desk.one()
    latest = take()
    desk.settle(done(claim, None, children=(CHILD, CHILD)))
    children = desk.claim(["child"], 10)
    assert [child.job_id > latest for child in children] == [True, True]

    latest = take()
    schedules = desk.maintenance.schedules
    planned = schedules.plan("night", "timing", NOW)
    fired = schedules.fire(planned, [NewJob("tidy", "{}", scheduled_at=NOW)], NOW + 60, NOW)
    assert fired is not None
    assert fired[0] > latest
    assert schedules.plan("night", "timing", 0).last_job == fired[0]

    latest = take()
    alerts = desk.maintenance.finished.alerts
    alerts.begin("alert:1", "a")
    raised = alerts.advance("alert:1", "a", "b", [ALERT], NOW)
    assert raised is not None
    assert (raised[0] or 0) > latest

    latest = take()
    assert desk.put() > latest


@pytest.fixture
def only_one(desk: Desk) -> Iterator[Callable[[], None]]:
    """An index of the application's, by which a type has one job at most."""
    yield lambda: execute(desk.engine.url, "CREATE UNIQUE INDEX only_one ON jobs (type)")
    execute(desk.engine.url, "DROP INDEX only_one")  # the database may be kept for the next test


def test_a_child_that_an_index_of_the_applications_refuses_fails_its_job(
    desk: Desk, only_one: Callable[[], None]
) -> None:
    desk.put("child")
    desk.put()
    claim = desk.one()
    only_one()
    desk.settle(done(claim, None, children=(CHILD,)))
    job = desk.job(claim.job_id)
    assert job.status == Status.FAILED
    assert "a job that it enqueued was refused" in (job.last_error or "")
    assert "UNIQUE rule" in (job.last_error or "")


def test_a_schedule_and_an_alert_that_such_an_index_refuses_say_so_and_stay_due(
    desk: Desk, only_one: Callable[[], None]
) -> None:
    desk.put("tidy")
    desk.put("mail")
    only_one()
    schedules, alerts = desk.maintenance.schedules, desk.maintenance.finished.alerts
    planned = schedules.plan("night", "timing", NOW, type="tidy")
    with pytest.raises(RowRefused, match="UNIQUE rule"):
        schedules.fire(planned, [NewJob("tidy", "{}", scheduled_at=NOW)], NOW + 60, NOW)
    with pytest.raises(RowRefused, match="UNIQUE rule"):
        schedules.run("night", NOW)
    assert schedules.plan("night", "timing", 0, type="tidy").next_at == NOW
    alerts.begin("alert:1", "a")
    with pytest.raises(RowRefused, match="UNIQUE rule"):
        alerts.advance("alert:1", "a", "b", [ALERT], NOW)
    assert alerts.state("alert:1") == "a"
    with pytest.raises(Conflict, match="UNIQUE rule"):
        desk.producer.put(NewJob("mail", "{}"))


def test_a_duplicate_of_a_unique_key_is_still_left_out(desk: Desk) -> None:
    desk.put("child", unique_key="k")
    desk.put()
    claim = desk.one()
    desk.settle(done(claim, None, children=(CHILD._replace(unique_key="k"),)))
    assert desk.status(claim.job_id) == Status.DONE
    assert len(desk.claim(["child"], 10)) == 1
