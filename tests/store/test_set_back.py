"""What waits when the clock is set back: delays count again, times that somebody has named stay."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from supervisor.domain.job import Status
from supervisor.domain.limits import Limits
from supervisor.domain.settlement import Settlement, crashed, failed, released, snoozed
from supervisor.maintenance.schedules import ClockWatch
from tests.store.kit import BROKEN, NOW, POLICY, Desk, execute

BACK = 7200.0
LATER = NOW - BACK  # what the clock shows after it was set back


def watch_of(desk: Desk) -> ClockWatch:
    return ClockWatch(desk.maintenance.backlog, desk.maintenance.gates)


def settled(desk: Desk, job: int, settle: Callable[..., Settlement], *arguments: object, **options: object) -> None:
    [claim] = [claim for claim in desk.claim(want=100) if claim.job_id == job]
    assert desk.settle(settle(claim, *arguments, **options)) == []


@pytest.mark.parametrize(
    ("settle", "delay"),
    [
        (lambda claim: failed(claim, BROKEN, POLICY, chance=0.5), 10.0),
        (lambda claim: failed(claim, BROKEN, POLICY, chance=0.5, after=5000.0), 5000.0),
        (lambda claim: snoozed(claim, 3000.0), 3000.0),
        (lambda claim: crashed(claim._replace(crashes=1), BROKEN, POLICY, 5, chance=0.5), 10.0),
        (released, 0.0),
    ],
)
def test_a_delay_counts_from_now_if_it_counted_from_a_time_to_come(
    desk: Desk, settle: Callable[..., Settlement], delay: float
) -> None:
    settled(desk, job := desk.put(at=NOW - 1), settle)

    assert watch_of(desk).run(LATER).done == 1
    assert desk.job(job).scheduled_at == pytest.approx(LATER + delay)
    assert watch_of(desk).run(LATER).done == 0


def test_what_was_due_when_it_was_inserted_is_due_and_what_was_not_waits(desk: Desk) -> None:
    named = [desk.put(at=at) for at in (LATER + 60, NOW + 60)]
    at_once = desk.put(at=NOW)
    for job, at in ((named[0], LATER - 60), (named[1], NOW), (at_once, NOW)):
        execute(desk.engine.url, f"UPDATE jobs SET created_at = {at}, updated_at = {at} WHERE id = {job}")

    assert watch_of(desk).run(LATER).done == 1
    assert [desk.job(job).scheduled_at for job in (*named, at_once)] == [LATER + 60, NOW + 60, LATER]
    assert [claim.job_id for claim in desk.claim(now=LATER)] == [at_once]


def test_a_running_watch_looks_only_after_the_clock_was_set_back(desk: Desk) -> None:
    watch = watch_of(desk)
    watch.run(NOW)
    settled(desk, desk.put(at=NOW - 1), lambda claim: failed(claim, BROKEN, POLICY, chance=0.5))

    assert watch.next_at(NOW + 1) is None
    assert watch.run(NOW + 1).done == 0
    assert watch.next_at(LATER) == LATER
    assert watch.run(LATER).more
    assert watch.run(LATER).done == 0
    assert watch.next_at(LATER) is None


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_an_application_may_write_anything_into_updated_at(desk: Desk) -> None:
    texts = desk.put(at=NOW - 1)
    settled(desk, texts, lambda claim: failed(claim, BROKEN, POLICY, chance=0.5, started_at=NOW - 5))
    never = [desk.put(at=NOW + 60) for _ in range(2)]
    for job, written in ((texts, "'2026-01-01 12:00'"), (never[0], "'2026-01-01 12:00'"), (never[1], "4e12")):
        execute(desk.engine.url, f"UPDATE jobs SET updated_at = {written} WHERE id = {job}")

    assert watch_of(desk).run(LATER).done == 1
    assert desk.job(texts).scheduled_at == LATER + 15  # from the start of its run
    assert [desk.job(job).scheduled_at for job in never] == [NOW + 60] * 2


def test_limits_of_types_and_keys_count_from_now(desk: Desk) -> None:
    now = time.time()
    desk.maintenance.gates.choose("a", Limits(interval=60.0), now)
    first, second = (desk.put("a", at=now - 1, extra={"concurrency_key": "k"}) for _ in range(2))
    desk.maintenance.gates.admit_due(now)
    watch = watch_of(desk)
    watch.run(now + BACK)
    for statement in (  # as they were when the clock showed a later time
        f"UPDATE job_limits SET next_at = {now + BACK}",
        f"INSERT INTO job_keys (type, key, next_at) VALUES ('a', 'k', {now + BACK})",
        f"UPDATE jobs SET scheduled_at = {now + BACK} WHERE id = {first}",
    ):
        execute(desk.engine.url, statement)

    while watch.run(now).more:
        pass
    assert [claim.job_id for claim in desk.claim(["a"], now=now)] == [first]
    assert desk.maintenance.gates.limits()[0].next_at <= now + 70
    assert desk.job(second).status is Status.HELD


def test_the_delay_of_a_held_retry_counts_from_now(desk: Desk) -> None:
    now = time.time()
    desk.maintenance.gates.choose("tag", Limits(max_running=1), now)
    job = desk.put(at=now - 1)
    desk.maintenance.gates.admit_due(now)
    [claim] = desk.claim(now=now + BACK)
    assert desk.settle(failed(claim, BROKEN, POLICY, chance=0.5), now=now + BACK) == []
    assert desk.job(job).status is Status.HELD
    assert watch_of(desk).run(now).done == 1
    assert desk.job(job).scheduled_at == pytest.approx(now + 10)
