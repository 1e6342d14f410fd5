"""Lists of jobs by any filter, in pages, and failures put together by what they have in common."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from supervisor.domain.job import Job, NewJob, Status
from supervisor.domain.settlement import Failure, Settlement, failed
from supervisor.store.base import Depth, ErrorGroup, Filter, Page, Sort
from tests.store.kit import BROKEN, NOW, POLICY, Desk

LATER = NOW + 1e6
TYPES = ("a", "b", "c")
ERRORS = {Status.FAILED: "no such picture", Status.QUARANTINED: "Worker DIED of it"}


def pages(desk: Desk, which: Filter, limit: int) -> list[int]:
    """What page after page shows, one turning over as long as there is a next."""
    found: list[int] = []
    before = None
    while True:
        page = desk.operations.jobs.page(which, before=before, limit=limit)
        assert len(page.jobs) <= limit
        found += [job.id for job in page.jobs]
        before = page.next
        if before is None:
            return found


def stock(desk: Desk, count: int = 150) -> list[Job]:
    """Jobs of every state, type, priority, with and without keys and requirements."""
    chance = random.Random(1)
    ids = []
    for number in range(count):
        status = chance.choice(list(Status))
        job_id = desk.put(
            chance.choice(TYPES),
            at=LATER if status is Status.PENDING else NOW,
            priority=chance.choice((0, 5)),
            unique_key=chance.choice((None, f"k{number}")),
            requires=chance.choice(("", "cpu", "cpu gpu")),
            extra={"status": "held", "hold": "after"} if status is Status.HELD else {},
        )
        end(desk, job_id, status, NOW + number)
        ids.append(job_id)
    return [desk.job(job_id) for job_id in ids]


def end(desk: Desk, job_id: int, status: Status, at: float) -> None:
    """Bring the only job that is due into this state."""
    if status is Status.CANCELLED:
        desk.operations.actions.cancel(job_id, at)
    elif status not in (Status.PENDING, Status.HELD):
        claim = desk.one(types=TYPES, now=at, capabilities="cpu gpu")
        failure = Failure("exception", ERRORS[status]) if status in ERRORS else None
        if status is not Status.RUNNING:
            assert desk.settle(Settlement(job_id, claim.token, status, failure=failure), now=at) == []


FILTERS: dict[str, tuple[Filter, Callable[[Job], bool]]] = {
    "all": (Filter(), lambda job: True),
    **{status.value: (Filter((status,)), lambda job, status=status: job.status is status) for status in Status},
    "what went wrong": (Filter(tuple(ERRORS)), lambda job: job.status in ERRORS),
    "what is unfinished": (
        Filter((Status.PENDING, Status.RUNNING)),
        lambda job: job.status in (Status.PENDING, Status.RUNNING),
    ),
    "failed or pending": (
        Filter((Status.PENDING, Status.FAILED)),
        lambda job: job.status in (Status.PENDING, Status.FAILED),
    ),
    "failed or done": (
        Filter((Status.DONE, Status.FAILED)),
        lambda job: job.status in (Status.DONE, Status.FAILED),
    ),
    "types": (Filter(types=("a", "c", "a")), lambda job: job.type in ("a", "c")),
    "failed of types": (
        Filter((Status.FAILED,), ("a", "b", "a", "none")),
        lambda job: job.status is Status.FAILED and job.type in ("a", "b"),
    ),
    "error in any case": (Filter(error="DIED"), lambda job: "DIED" in (job.last_error or "")),
    "error with wildcards": (Filter(error="%"), lambda job: False),
    "key": (Filter(unique_key="k3"), lambda job: job.unique_key == "k3"),
    "requires a word": (Filter(requires="cpu"), lambda job: "cpu" in job.requires.split()),
    "requires no part of a word": (Filter(requires="cp"), lambda job: False),
    "requires nothing": (Filter(requires=""), lambda job: job.requires == ""),
    "priority": (Filter(priority=5), lambda job: job.priority == 5),
    "finished between": (
        Filter(finished_after=NOW + 20, finished_before=NOW + 40),
        lambda job: job.completed_at is not None and NOW + 20 <= job.completed_at < NOW + 40,
    ),
    "everything at once": (
        Filter(
            (Status.FAILED, Status.QUARANTINED),
            ("a", "b"),
            error="picture",
            requires="cpu",
            priority=0,
            finished_after=NOW + 5,
            finished_before=NOW + 140,
        ),
        lambda job: (
            job.status is Status.FAILED
            and job.type in ("a", "b")
            and "cpu" in job.requires
            and job.priority == 0
            and NOW + 5 <= (job.completed_at or 0) < NOW + 140
        ),
    ),
}


def test_every_filter_finds_the_jobs_that_it_means_whatever_the_size_of_the_page(desk: Desk) -> None:
    jobs = stock(desk)
    for name, (which, means) in FILTERS.items():
        expected = [job.id for job in reversed(jobs) if means(job)]
        for limit in (1, 7, 1000):
            assert pages(desk, which, limit) == expected, (name, limit)
        assert desk.operations.jobs.ids(which) == expected[::-1], name
        assert desk.operations.jobs.count(which, limit=1000) == len(expected), name
        assert desk.operations.jobs.count(which, limit=3) == min(3, len(expected)), name


def test_a_full_last_page_has_no_next_one(desk: Desk) -> None:
    ids = [desk.put() for _ in range(4)]

    first = desk.operations.jobs.page(Filter(), before=None, limit=2)
    second = desk.operations.jobs.page(Filter(), before=first.next, limit=2)

    assert [job.id for job in first.jobs + second.jobs] == ids[::-1]
    assert (first.next, second.next) == (ids[2], None)
    assert desk.operations.jobs.page(Filter(), before=1, limit=2) == Page([], None)


def test_jobs_that_come_or_go_between_two_pages_move_no_other(desk: Desk) -> None:
    ids = [desk.put() for _ in range(6)]
    for job_id in ids:
        desk.finish(job_id, Status.FAILED)
    first = desk.operations.jobs.page(Filter((Status.FAILED,)), before=None, limit=3)
    desk.operations.actions.retry(ids[4:], NOW)
    desk.finish(desk.put("a"), Status.FAILED)

    second = desk.operations.jobs.page(Filter((Status.FAILED,)), before=first.next, limit=3)

    assert [job.id for job in second.jobs] == ids[2::-1]


@pytest.mark.long_on_postgres
def test_many_more_jobs_than_one_look_compares(desk: Desk) -> None:
    ids = desk.producer.enqueue([NewJob("tag", "{}", number % 2, scheduled_at=NOW) for number in range(25_000)])
    for start in range(0, 1500, 500):
        for claim in desk.claim(want=500, now=LATER):
            desk.settle(Settlement(claim.job_id, claim.token, Status.FAILED, failure=BROKEN), now=LATER + start)

    now = desk.producer.events(ids)
    odd = [job_id for job_id in ids if now[job_id].status is Status.FAILED]
    assert len(odd) == 1500
    assert pages(desk, Filter((Status.FAILED,)), 400) == odd[::-1]
    assert desk.operations.jobs.ids(Filter((Status.PENDING,))) == [job_id for job_id in ids if job_id not in set(odd)]
    assert desk.operations.jobs.ids(Filter(priority=0)) == ids[::2]


def test_counts_of_what_is_open_and_of_what_is_closed_are_all_counts(desk: Desk) -> None:
    jobs = stock(desk)
    expected = Counter((job.type, job.status) for job in jobs)

    counted = {(type_, status): count for type_, status, count in desk.operations.statistics.counts()}
    assert counted == dict(expected)
    assert len(desk.operations.statistics.counts()) == len(expected)
    closed = {status for _, status, _ in desk.operations.statistics.closed_counts()}
    assert closed == {Status.DONE, Status.CANCELLED}
    assert sorted(desk.operations.statistics.counts()) == sorted(
        desk.operations.statistics.open_counts() + desk.operations.statistics.closed_counts()
    )


# Failures


def fail(desk: Desk, type_: str, message: str, at: float, kind: str = "exception") -> int:
    job_id = desk.put(type_)
    claim = desk.one(types=[type_])
    desk.settle(Settlement(job_id, claim.token, Status.FAILED, failure=Failure(kind, message)), now=at)
    return job_id


def test_failures_that_differ_in_numbers_and_names_are_one_group(desk: Desk) -> None:
    first = fail(desk, "a", "cannot open '/srv/1.jpg'", NOW)
    last = fail(desk, "a", "cannot open '/srv/22.jpg'", NOW + 2)
    fail(desk, "b", "cannot open '/srv/1.jpg'", NOW + 1)
    fail(desk, "a", "time limit of 5 s", NOW + 1, kind="timeout")
    fail(desk, "a", "long ago", NOW - 100)
    desk.operations.actions.retry([first], NOW + 3)

    groups = desk.operations.statistics.error_groups(NOW, 10)

    assert groups == [
        ErrorGroup("a", "exception", "cannot open '/srv/22.jpg'", 2, 1, NOW + 2, last),
        ErrorGroup("a", "timeout", "time limit of 5 s", 1, 1, NOW + 1, last + 2),
        ErrorGroup("b", "exception", "cannot open '/srv/1.jpg'", 1, 1, NOW + 1, last + 1),
    ]
    assert desk.operations.statistics.error_groups(NOW, 1) == groups[:1]


def test_a_job_that_failed_several_times_is_one_job_of_its_group(desk: Desk) -> None:
    job_id = desk.put()
    for number in range(3):
        claim = desk.one(now=NOW + 100 * number)
        desk.settle(failed(claim, BROKEN, POLICY, chance=0.5), now=NOW + 100 * number)
    assert desk.status(job_id) is Status.FAILED

    [group] = desk.operations.statistics.error_groups(NOW, 10)

    assert (group.count, group.jobs, group.last_job) == (3, 1, job_id)


# What bulk changes and the overview ask


def test_of_many_jobs_the_waiting_are_cancelled_and_the_running_asked_to_stop(desk: Desk) -> None:
    running = desk.put()
    desk.one()
    waiting, finished = desk.put("a"), desk.put("b")
    desk.finish(finished)

    assert desk.operations.actions.cancel_all([running, waiting, finished, 4711], NOW) == 2

    assert (desk.status(running), desk.job(running).cancel_requested_at) == (Status.RUNNING, NOW)
    assert [desk.status(job_id) for job_id in (waiting, finished)] == [Status.CANCELLED, Status.DONE]


def test_the_backlog_tells_of_every_type_what_waits_whoever_may_take_it(desk: Desk) -> None:
    desk.put("a", at=NOW - 9)
    desk.put("a", at=NOW - 5, priority=7, requires="gpu")
    desk.put("a", at=NOW + 5)
    desk.put("b", at=NOW + 50)
    desk.put("c", at=NOW - 1)
    desk.operations.controls.pause("c", NOW)
    desk.finish(desk.put("d"))
    desk.put("e")
    desk.one(types=["e"])

    assert desk.operations.backlog.by_type(NOW, 100) == {
        "a": Depth(due=2, oldest=NOW - 9, next_due=None),
        "b": Depth(due=0, oldest=None, next_due=NOW + 50),
        "c": Depth(due=1, oldest=NOW - 1, next_due=None),
        "e": Depth(),
    }
    assert desk.operations.backlog.by_type(NOW, 1)["a"].due == 1


def test_a_list_in_another_order_is_the_same_list_sorted(desk: Desk) -> None:
    jobs = stock(desk)
    keys: dict[Sort, Callable[[Job], object]] = {
        Sort.ID: lambda job: job.id,
        Sort.TYPE: lambda job: (job.type, job.id),
        Sort.STATUS: lambda job: (job.status.value, job.id),
        Sort.PRIORITY: lambda job: (job.priority, job.id),
        Sort.ATTEMPTS: lambda job: (job.attempts, job.id),
        Sort.DUE: lambda job: (job.scheduled_at, job.id),
        Sort.CHANGED: lambda job: (job.completed_at or job.started_at or job.created_at, job.id),
    }

    assert set(keys) == set(Sort)
    for by, key in keys.items():
        for descending in (False, True):
            order = {"by": by, "descending": descending, "before": None, "limit": 40}
            page = desk.operations.jobs.arranged(Filter(types=("a", "b")), **order)  # type: ignore[arg-type]  # the same
            expected = sorted((job for job in jobs if job.type != "c"), key=key, reverse=descending)  # type: ignore[arg-type]  # one kind each
            assert [job.id for job in page.jobs] == [job.id for job in expected][:40], (by, descending)
            assert page.next is None


@pytest.mark.long_on_postgres
def test_a_search_in_large_payloads_is_found_page_by_page(desk: Desk) -> None:
    large = '"' + "x" * 60_000 + ' %s"'
    ids = [desk.put(payload=large % ("NEEDLE" if number % 300 == 5 else "hay")) for number in range(900)]

    assert pages(desk, Filter(text="needle"), 2) == [ids[605], ids[305], ids[5]]
    assert desk.operations.jobs.count(Filter(text="needle", ids=tuple(ids[:400])), limit=9) == 2


def test_a_filter_that_no_text_of_a_row_can_match_finds_nothing(desk: Desk) -> None:
    desk.put()
    for odd in ("a\0b", "a\ud800b"):
        for which in (Filter(types=(odd,)), Filter(tags=(odd,)), Filter(error=odd), Filter(unique_key=odd)):
            assert desk.operations.jobs.ids(which) == []
