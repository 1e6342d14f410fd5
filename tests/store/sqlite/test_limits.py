"""What a burst waits for among jobs with gates."""

from __future__ import annotations

import sqlite3
import time

from supervisor.domain.limits import Limits
from supervisor.domain.settlement import done, failed
from supervisor.store.base import JobSelector
from tests.store.kit import BROKEN, POLICY, Desk


def test_a_burst_waits_for_a_retry_that_is_held_and_for_a_start_that_is_near(
    desk: Desk, foreign: sqlite3.Connection
) -> None:
    now = time.time()  # the triggers know no other clock

    def unfinished(within: float = 600.0) -> bool:
        return desk.maintenance.backlog.unfinished(JobSelector(("tag",)), now, within)

    def gates() -> list[tuple[str, str]]:
        return foreign.execute("SELECT status, hold FROM jobs").fetchall()

    desk.operations.gates.choose("tag", Limits(1), now)
    desk.put()
    desk.settle(failed(desk.one(now=now), BROKEN, POLICY, chance=0.5), now=now)  # it is tried again in 10 s
    assert gates() == [("held", "due")]
    assert unfinished()
    assert not unfinished(within=5.0)
    foreign.execute("DELETE FROM jobs")

    desk.put()
    assert gates() == [("pending", "")]
    foreign.execute("UPDATE jobs SET scheduled_at = ?", [now + 60.0])  # as a rate does
    assert unfinished()
    assert not unfinished(within=5.0)
    foreign.execute("UPDATE jobs SET scheduled_at = ?", [now])
    desk.settle(done(desk.one(now=now), None), now=now)
    assert not unfinished()


def test_a_sweep_asks_one_question_of_a_database_without_gates(desk: Desk) -> None:
    """The statements that let jobs pass take a megabyte of memory with their triggers."""
    desk.put()
    asked: list[str] = []
    desk.maintenance._connection.raw.set_trace_callback(asked.append)  # type: ignore[attr-defined]
    assert desk.maintenance.gates.sweep(time.time()) == (0, False)
    assert len(asked) == 1
