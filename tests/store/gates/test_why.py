"""Why a job does not run, for every reason that a user may meet, from the rows of each engine to the sentence."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from supervisor.domain.errors import Conflict
from supervisor.domain.job import Status
from supervisor.domain.limits import interval_of
from supervisor.domain.settlement import failed
from supervisor.ops import commands
from supervisor.ops.views import Present
from supervisor.ops.why import reasons
from tests.store.gates.conftest import Gates
from tests.store.gates.test_after import after
from tests.store.kit import BROKEN, POLICY
from tests.unit.test_why import pool, present, supervisor, worker

AT = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ, in \S+"
AGO = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ, \S+ ago"
LOOK = r"`supervisor jobs why (\d+)` says what job \1 is doing"
HERE = present(workers=[worker("tag-1", job=None)])


def why(gates: Gates, job_id: int, about: Present = HERE) -> list[tuple[str, str, str]]:
    jobs = gates.desk.operations.jobs
    job = jobs.get(job_id)
    assert job is not None
    found = reasons(job, time.time(), about, held=jobs.held(job), twin=jobs.twin(job))
    return [(each.code, each.text, each.advice) for each in found]


def busy(gates: Gates) -> int:
    """The second of three jobs of a key, of which the first runs."""
    jobs = gates.put(3, concurrency_key="user:42")
    gates.claim()
    return jobs[1]


def limited(gates: Gates, count: int, run: int = 0, **limits: Any) -> int:
    """The last of so many jobs of a type with limits, of which some run."""
    gates.limit(**limits)
    last = gates.put(count)[-1]
    assert len(gates.claim(run)) == run
    return last


def broken(gates: Gates, *, first: bool) -> int:
    gates.limit(max_failures=2, breaker_pause=3600.0, max_running=1)
    jobs = gates.put(4)
    for job in jobs[:2]:
        gates.work(job, Status.FAILED)
    return jobs[2] if first else jobs[3]


def closed(gates: Gates) -> int:
    """Of a key that another job has closed for an hour."""
    _, second = gates.put(2, concurrency_key="user:42")
    [claim] = gates.claim()
    gates.settle(failed(claim, BROKEN, POLICY, chance=0.5, permanent=True)._replace(pause=3600.0))
    return second


def next_of_key(gates: Gates) -> int:
    gates.limit(key_interval=interval_of("1/m"))
    first, second = gates.put(2, concurrency_key="user:42")
    gates.work(first)
    return second


def follower(gates: Gates, status: Status) -> int:
    first = gates.one()
    job = after(gates, first)
    gates.work(first, status)
    return job


def expired(gates: Gates, *, seen: bool) -> int:
    job = gates.one(expires_at=time.time() - 5)
    if seen:
        gates.desk.maintenance.gates.cancel_expired(time.time())
    return job


def twin(gates: Gates) -> int:
    job = gates.one(unique_key="k")
    gates.work(job, Status.FAILED)
    gates.one(unique_key="k")
    return job


def superseded(gates: Gates) -> int:
    job = gates.one(unique_key="k", waiting_key="k")
    gates.sql(f"UPDATE jobs SET status = 'running' WHERE id = {job}")
    gates.one(unique_key="k", waiting_key="k")
    gates.sql(f"UPDATE jobs SET status = 'pending' WHERE id = {job}")
    return job


def foreign(gates: Gates) -> int:
    job = gates.one()
    gates.sql(f"UPDATE jobs SET status = 'running' WHERE id = {job}")
    return job


def skipped(gates: Gates) -> int:
    gates.limit(on_conflict="skip")
    return gates.put(2, concurrency_key="a")[1]


def arrived(gates: Gates) -> int:
    """Not looked at yet by a supervisor, as every new job is on PostgreSQL."""
    return gates.one(status="held", hold="key", concurrency_key="a")


RUN = r"`supervisor jobs retry \d+` runs it again"
HAND = r"`supervisor jobs run-now \d+` lets it run"
BREAKER = "the breaker of the type tag is open, since 2 attempts in a row have failed"
MEET = "give a pool the capabilities .*"
CASES: dict[str, tuple[Callable[[Gates], int], str, str, str]] = {
    "not due": (lambda g: g.one(scheduled_at=time.time() + 60), "not_due",
                f"it is not due until {AT}; it was enqueued for then", ""),
    "not due, with a key": (lambda g: g.one(scheduled_at=time.time() + 60, concurrency_key="a"), "not_due",
                            f"it is not due until {AT}; it was enqueued for then", ""),
    "a key that a job waits for": (lambda g: g.put(2, concurrency_key="user:42")[1], "held_key",
        r"its concurrency key user:42 has no room: job \d+ comes first, and has not started yet", LOOK),
    "a key that a job has": (busy, "held_key",
        r"its concurrency key user:42 has no room: job \d+ has been running for \S+", LOOK),
    "a key with many before": (lambda g: g.put(4, concurrency_key="a")[3], "held_key",
        r"its concurrency key a has no room: job \d+ comes first, and has not started yet; 2 other jobs wait there "
        "before this one", LOOK),
    "a type": (lambda g: limited(g, 9, 3, max_running=3), "held_type",
        r"the type tag has no room: 3 jobs \(\d+, \d+, \d+\) run or may start, of at most 3; 5 other jobs wait there "
        "before this one", LOOK),
    "a rate that keeps others": (lambda g: limited(g, 3, 1, interval=interval_of("1/m")), "rate",
        rf"the type tag is limited to 1/m; the next job may start at {AT}", ""),
    "a rate that keeps the next": (lambda g: limited(g, 2, 1, interval=interval_of("1/m")), "rate",
        rf"the type tag is limited to 1/m; this job is the next, and may start at {AT}", ""),
    "the rate of a key": (next_of_key, "rate",
        rf"its concurrency key user:42 is limited to 1/m; (this job is the next, and|the next job) may start at {AT}",
        ""),
    "a type that is full beside its rate": (
        lambda g: limited(g, 3, 1, interval=interval_of("100/s"), max_running=1), "held_type",
        r"the type tag has no room: job \d+ has been running for \S+; 1 other job waits there before this one", LOOK),
    "a pause of the key": (closed, "rate",
        f"its concurrency key user:42 is closed until {AT}, as a job has asked with `whole_key`", ""),
    "an open breaker": (lambda g: broken(g, first=False), "breaker",
        f"{BREAKER}; one job at a time may start, from {AT} on, until one succeeds", LOOK),
    "an open breaker, the first": (lambda g: broken(g, first=True), "breaker",
        f"{BREAKER}; this job starts first, at {AT}", ""),
    "others": (lambda g: after(g, *g.put(2)), "held_after", r"it waits for 2 jobs \(\d+, \d+\) to end", LOOK),
    "nothing": (lambda g: g.one(status="held", hold="after"), "held_after",
        "it waits for other jobs to end, and the table job_after names none", HAND),
    "a supervisor": (arrived, "held_key", "its concurrency key a has room, and a supervisor has to let it through", ""),
    "a predecessor that failed": (lambda g: follower(g, Status.FAILED), "cancelled",
        rf"it was cancelled at {AGO}: it was to run after job \d+, which ended failed",
        rf"`supervisor jobs retry \d+` has it wait again; {RUN} without that"),
    "expired": (lambda g: expired(g, seen=True), "expired", f"it expired at {AGO}: it had not started in time",
                "enqueue it again"),
    "expired, not noticed": (lambda g: expired(g, seen=False), "expired",
                             f"it expired at {AGO}, and a supervisor has to cancel it", ""),
    "unique": (twin, "failed", f"it failed at {AGO}, after 1 attempt: ValueError: no such picture",
               rf"once job \d+ has ended, {RUN}"),
    "superseded": (superseded, "cancelled", rf"it was cancelled at {AGO}: superseded by job \d+",
                   rf"once job \d+ has ended, {RUN}"),
    "skipped": (skipped, "cancelled", f"it was cancelled at {AGO}: skipped: its concurrency_key had another job", RUN),
    "another's lock": (foreign, "foreign", f"another program has claimed it; its lock ends at {AT}",
                       "unless that program settles it by then, it returns to the queue"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_reason_is_told_from_the_rows(gates: Gates, case: str) -> None:
    make, code, text, advice = CASES[case]
    found = why(gates, make(gates))
    assert found[0][0] == code
    assert re.fullmatch(text, found[0][1]), found[0][1]
    assert re.fullmatch(advice, found[0][2]), found[0][2]
    assert [each[0] for each in found[1:]] == (["unique"] if case in ("unique", "superseded") else [])


@pytest.mark.parametrize(
    ("about", "text"),
    [
        ({"paused": frozenset({"tag"})}, "the type tag is paused"),
        ({"pools": [pool("mail")]}, "no pool takes the type tag"),
        ({"supervisors": [supervisor(drained=True)]}, "supervisor 7 claims no jobs: its host is drained"),
        (
            {"pools": [pool("tag", problem="no module", broken=True)]},
            "the pool tag of supervisor 7 cannot start its workers: no module",
        ),
        (
            {"pools": [pool("tag", capabilities=["cpu"])]},
            "no pool that takes tag has the capabilities that some of its jobs require: gpu",
        ),
    ],
)
def test_what_keeps_a_held_job_beside_its_gate_is_told_after_that(
    gates: Gates, about: dict[str, Any], text: str
) -> None:
    requires = "gpu" if "require" in text else ""
    held = gates.put(2, concurrency_key="a", requires=requires)[1]
    given = {"workers": [worker("mail-1", job=None)], **about}
    assert [each[1] for each in why(gates, held, present(**given))][1:] == [text]


def test_the_worker_that_has_the_key_is_named(gates: Gates) -> None:
    held = busy(gates)
    about = present(workers=[worker("tag-3", job=held - 1, running_for=12.0)])
    assert f"job {held - 1} has been running in tag-3 for 12s" in why(gates, held, about)[0][1]


@pytest.mark.parametrize("case", ["not due, with a key", "a key that a job has", "a type", "others", "nothing",
                                  "an open breaker", "a rate that keeps the next", "not due"])  # fmt: skip
def test_a_job_that_is_let_run_by_hand_passes_all_its_gates(gates: Gates, case: str) -> None:
    job = CASES[case][0](gates)
    commands.run_now(gates.desk.operations, job, time.time())
    gates.tend()
    assert job in gates.pending()
    assert [claim.job_id for claim in gates.claim(100)].count(job) == 1


def test_what_is_let_run_by_hand_is_counted_by_the_others(gates: Gates) -> None:
    first, second, third = gates.put(3, concurrency_key="a")
    commands.run_now(gates.desk.operations, second, time.time())
    gates.work(first)
    assert (gates.pending(), gates.hold(third)) == ([second], "key")
    gates.work(second)
    assert gates.pending() == [third]


def test_what_is_let_run_before_its_predecessors_is_not_held_by_them_again(gates: Gates) -> None:
    first = gates.one()
    job = after(gates, first)
    commands.run_now(gates.desk.operations, job, time.time())
    gates.work(first, Status.FAILED)
    assert gates.pending() == [job]
    gates.work(job, Status.PENDING)
    assert gates.hold(job) != "after"


def test_what_cannot_be_run_by_hand_is_refused_with_the_reason(gates: Gates) -> None:
    def refused(job: int, change: Callable[[], object]) -> str:
        before = gates.status(job)
        with pytest.raises(Conflict) as error:
            change()
        assert gates.status(job) == before
        return str(error.value)

    operations, now = gates.desk.operations, time.time()
    runs, gone, failed_ = foreign(gates), expired(gates, seen=True), twin(gates)
    late = expired(gates, seen=False)
    waits = "only a job that waits can be run now"
    assert refused(runs, lambda: commands.run_now(operations, runs, now)) == f"job {runs} is running; {waits}"
    said = refused(failed_, lambda: commands.run_now(operations, failed_, now))
    assert said == f"job {failed_} is failed; {waits}; retry it"
    for job in (late, gone):
        said = refused(job, functools.partial(commands.run_now, operations, job, now))
        assert said == f"job {job} has expired; enqueue it again"
    again = f"job {gone} has expired, and would expire again; enqueue it again"
    assert refused(gone, lambda: commands.check(operations, "retry", [gone])) == again
