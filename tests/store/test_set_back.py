"""What waits when the clock is set back: delays count again, times that somebody has named stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from supervisor.domain.settlement import Settlement, crashed, failed, released, snoozed
from supervisor.maintenance.schedules import ClockWatch
from tests.store.kit import BROKEN, NOW, POLICY, Desk, execute

BACK = 7200.0
LATER = NOW - BACK  # what the clock shows after it was set back


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

    assert ClockWatch(desk.maintenance.backlog).run(LATER).done == 1
    assert desk.job(job).scheduled_at == pytest.approx(LATER + delay)
    assert ClockWatch(desk.maintenance.backlog).run(LATER).done == 0


def test_what_was_due_when_it_was_inserted_is_due_and_what_was_not_waits(desk: Desk) -> None:
    named = [desk.put(at=at) for at in (LATER + 60, NOW + 60)]
    at_once = desk.put(at=NOW)
    for job, at in ((named[0], LATER - 60), (named[1], NOW), (at_once, NOW)):
        execute(desk.engine.url, f"UPDATE jobs SET created_at = {at}, updated_at = {at} WHERE id = {job}")

    assert ClockWatch(desk.maintenance.backlog).run(LATER).done == 1
    assert [desk.job(job).scheduled_at for job in (*named, at_once)] == [LATER + 60, NOW + 60, LATER]
    assert [claim.job_id for claim in desk.claim(now=LATER)] == [at_once]


def test_a_running_watch_looks_only_after_the_clock_was_set_back(desk: Desk) -> None:
    watch = ClockWatch(desk.maintenance.backlog)
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

    assert ClockWatch(desk.maintenance.backlog).run(LATER).done == 1
    assert desk.job(texts).scheduled_at == LATER + 15  # from the start of its run
    assert [desk.job(job).scheduled_at for job in never] == [NOW + 60] * 2
