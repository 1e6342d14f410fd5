"""Triggers of the application's that refuse or ignore what is settled: no job stays running for that, or runs again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest

from supervisor.domain.job import Status
from supervisor.domain.settlement import crashed, done, failed
from supervisor.store.sql.connection import RowRefused
from tests.store.kit import BROKEN, NOW, POLICY, Desk, execute

Trigger = Callable[[str, str, str], None]


@pytest.fixture
def trigger(desk: Desk) -> Iterator[Trigger]:
    """Before an event on a table, under a condition: "refuse" or "ignore"."""
    url = desk.engine.url
    sqlite = url.startswith("sqlite:")
    made = dict[str, str]()

    def make(event: str, when: str, what: str) -> None:
        name = f"foreign_{len(made)}"
        made[name] = event.split()[-1]
        if sqlite:
            raised = "raise(ABORT, 'not here')" if what == "refuse" else "raise(IGNORE)"
            execute(url, f"CREATE TRIGGER {name} BEFORE {event} WHEN {when} BEGIN SELECT {raised}; END")
            return
        body = "RAISE EXCEPTION 'not here'" if what == "refuse" else "RETURN NULL"
        execute(url, f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {body}; END$$")
        execute(url, f"CREATE TRIGGER {name} BEFORE {event} FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION {name}()")

    yield make
    for name, table in made.items():
        execute(url, f"DROP TRIGGER {name}" + ("" if sqlite else f" ON {table}; DROP FUNCTION {name}"))


def test_failures_whose_record_is_refused_are_settled_without_it(desk: Desk, trigger: Trigger) -> None:
    jobs = [desk.put(max_attempts=1), desk.put()]
    claims = desk.claim(want=2)
    trigger("INSERT ON job_errors", "NEW.job_id > 0", "refuse")
    desk.settle(failed(claims[0], BROKEN, POLICY, chance=0.5))
    desk.maintenance.locks.settle_dead("w1", [crashed(claims[1], BROKEN, POLICY, 3, chance=0.5)], NOW)
    assert [desk.status(job) for job in jobs] == [Status.FAILED, Status.PENDING]
    assert desk.job(jobs[0]).last_error == BROKEN.message


def test_a_row_that_is_refused_is_set_aside_without_a_record(desk: Desk, trigger: Trigger) -> None:
    job = desk.put()
    claim = desk.one()
    trigger("INSERT ON job_errors", "NEW.job_id > 0", "refuse")
    trigger("UPDATE ON jobs", "NEW.status = 'done'", "refuse")
    desk.settle(done(claim, None))
    assert desk.status(job) is Status.QUARANTINED


@pytest.mark.parametrize("as_well", ["", "quarantined"])
def test_one_that_cannot_be_cancelled_lets_the_others_expire(desk: Desk, trigger: Trigger, as_well: str) -> None:
    keyed = [{"expires_at": NOW + 60, "concurrency_key": key} for key in "klmm"]
    refused, passed, first, held = (desk.put(extra=extra) for extra in keyed)
    assert desk.status(held) is Status.HELD
    trigger("UPDATE ON jobs", f"NEW.id IN ({refused}, {held}) AND NEW.status IN ('cancelled', '{as_well}')", "refuse")
    with pytest.raises(RowRefused, match=f"job {refused} has expired") if as_well else nullcontext():
        while desk.maintenance.gates.cancel_expired(NOW + 61):
            pass
    stays = {Status.PENDING, Status.HELD} if as_well else {Status.QUARANTINED}
    assert {desk.status(passed), desk.status(first)} == {Status.CANCELLED}
    assert {desk.status(refused), desk.status(held)} <= stays
