"""Rates, and the breaker."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from supervisor.domain.job import Status
from supervisor.domain.limits import Limits, interval_of
from supervisor.domain.settlement import done, failed
from tests.stopwatch import Stopwatch
from tests.store.gates.conftest import Gates
from tests.store.kit import BROKEN, POLICY


def starts(gates: Gates, count: int, patience: float = 20.0) -> list[tuple[float, int]]:
    """When jobs were started, by a worker that always looks."""
    found: list[tuple[float, int]] = []
    deadline = time.time() + patience
    while len(found) < count:
        assert time.time() < deadline
        now = time.time()  # what the claim sees: however late it is carried out, it takes nothing that is due later
        for claim in gates.claim(10, now=now):
            found.append((now, claim.job_id))
            gates.settle(done(claim, None))
        gates.tend()
        time.sleep(0.001)
    return found


def test_starts_are_spaced_by_the_rate(gates: Gates) -> None:
    gates.limit(interval=interval_of("20/s"))
    jobs = gates.put(25)
    assert len(gates.pending()) == 1
    watch = Stopwatch()
    found = starts(gates, 25)
    times = [at for at, _ in found]
    assert [job for _, job in found] == jobs
    assert all(later - at > 1.0 for at, later in zip(times, times[20:], strict=False))
    assert watch.seconds(times[-1] - times[0]) < 24 * 0.05 * 1.25 + 0.3


def test_after_a_pause_nothing_is_caught_up(gates: Gates) -> None:
    gates.limit(interval=0.1)
    gates.put(4)
    [first] = starts(gates, 1)
    time.sleep(0.5)
    times = [first[0], *(at for at, _ in starts(gates, 3))]
    assert all(later - at > 0.08 for at, later in itertools.pairwise(times))


def test_starts_are_saved_up_for_a_burst(gates: Gates) -> None:
    gates.limit(interval=0.5, burst=3)
    gates.put(4)
    times = [at for at, _ in starts(gates, 4)]
    assert times[2] - times[0] < 0.4
    assert times[3] - times[0] > 0.4


def test_the_rate_of_a_key_concerns_no_other(gates: Gates) -> None:
    gates.limit(key_interval=0.3, per_key=5)
    a, b = gates.put(2, concurrency_key="a"), gates.put(2, concurrency_key="b")
    found = {job: at for at, job in starts(gates, 4)}
    assert found[b[0]] - found[a[0]] < 0.2
    assert found[a[1]] - found[a[0]] > 0.27
    assert found[b[1]] - found[b[0]] > 0.27


def test_a_start_by_a_foreign_program_counts(gates: Gates) -> None:
    gates.limit(interval=0.3)
    first, second = gates.put(2)
    at = time.time()
    gates.sql(f"UPDATE jobs SET status = 'running' WHERE id = {first}")
    assert gates.pending() == [second]
    assert starts(gates, 1)[0][0] - at > 0.28


def test_a_claim_that_is_released_passes_the_rate_again(gates: Gates) -> None:
    gates.limit(interval=0.2)
    gates.put(3)
    gates.work(gates.pending()[0], Status.PENDING)
    assert len(gates.pending()) == 1


def test_the_breaker_opens_after_so_many_failures_in_a_row_and_closes_with_a_success(gates: Gates) -> None:
    gates.limit(max_failures=2, breaker_pause=0.3)
    gates.work(gates.one(), Status.FAILED)
    gates.work(gates.one())
    for _ in range(2):
        gates.work(gates.one(), Status.FAILED)
    opened = time.time()
    jobs = gates.put(5)
    assert gates.pending() == jobs[:1]
    assert gates.claim() == []  # not before the pause is over
    [(at, probe)] = starts(gates, 1)
    assert probe == jobs[0]
    assert at - opened > 0.25
    assert len(gates.pending()) > 1


def test_a_breaker_that_meets_another_failure_stays_open(gates: Gates) -> None:
    gates.limit(max_failures=1, breaker_pause=0.2)
    gates.work(gates.one(), Status.FAILED)
    jobs = gates.put(3)
    time.sleep(0.25)
    gates.work(jobs[0], Status.FAILED)
    assert gates.pending() == jobs[1:2]
    assert gates.claim() == []


@pytest.mark.parametrize(("rate", "most"), [("150/s", 1), ("200/s", 1), ("500/s", 4)])
def test_a_high_rate_lets_the_jobs_of_ten_milliseconds_through(gates: Gates, rate: str, most: int) -> None:
    gates.limit(interval=interval_of(rate))
    gates.put(300)
    assert len(gates.pending()) == most
    for claim in gates.claim(10):
        gates.settle(done(claim, None))
    assert len(gates.pending()) == most


def test_turns_keep_to_the_rate(gates: Gates) -> None:
    gates.limit(interval=0.1, max_running=10, fair=True)
    bob, alice = gates.put(3, fair_key="bob"), gates.put(2, fair_key="alice")
    found = starts(gates, 5)
    assert [job for _, job in found] == [bob[0], bob[1], alice[0], bob[2], alice[1]]
    assert all(later - at > 0.08 for (at, _), (later, _) in itertools.pairwise(found))


def test_turns_wait_for_the_breaker(gates: Gates) -> None:
    gates.limit(max_failures=1, breaker_pause=0.3, max_running=10, fair=True)
    failing = gates.one(fair_key="a")
    opened = time.time()
    gates.work(failing, Status.FAILED)
    gates.put(2, fair_key="a")
    assert starts(gates, 1)[0][0] - opened > 0.28


def pause(gates: Gates, job: int, seconds: float) -> None:
    [claim] = [claim for claim in gates.claim() if claim.job_id == job]
    gates.settle(failed(claim, BROKEN, POLICY, chance=0.5, after=seconds, pause=seconds))
    gates.tend()


@pytest.mark.parametrize("limits", [{"interval": 0.02}, {"max_running": 1}, {"max_running": 3, "per_key": 2}])
def test_a_key_that_is_closed_takes_no_place_of_its_type(gates: Gates, limits: dict[str, Any]) -> None:
    gates.limit(**limits)
    first, *others = gates.put(4, concurrency_key="a")
    pause(gates, first, 3600.0)
    assert [gates.hold(job) for job in others] == ["key"] * 3
    free = gates.put(3, concurrency_key="b")
    assert [job for _, job in starts(gates, 3)] == free
    assert gates.pending() == []


def test_the_rate_of_a_key_takes_no_place_of_its_type(gates: Gates) -> None:
    gates.limit(key_interval=3600.0, max_running=1)
    first, second = gates.put(2, concurrency_key="a")
    other = gates.one(concurrency_key="b")
    assert [job for _, job in starts(gates, 2)] == [first, other]
    assert gates.hold(second) == "key"


def test_a_key_opens_when_its_pause_is_over(gates: Gates) -> None:
    gates.limit(max_running=1)
    first, second = gates.put(2, concurrency_key="a")
    at = time.time()
    pause(gates, first, 0.3)
    found = starts(gates, 2)
    assert {job for _, job in found} == {first, second}
    assert 0.29 < found[0][0] - at < 1.0


def test_a_pause_is_not_shorter_for_a_burst(gates: Gates) -> None:
    gates.limit(interval=0.2, burst=3)
    [first, _] = gates.put(2)
    at = time.time()
    pause(gates, first, 0.5)
    assert starts(gates, 1)[0][0] - at > 0.48


@pytest.mark.parametrize("to", [{"interval": 0.01}, {"max_running": 5}, None])
@pytest.mark.parametrize("paused", [False, True])
def test_a_changed_rate_holds_at_once(gates: Gates, to: dict[str, Any] | None, paused: bool) -> None:
    gates.limit(interval=3600.0)
    first, *_ = gates.put(3)
    if paused:
        pause(gates, first, 3600.0)
    else:
        gates.work(first)
    assert gates.claim() == []
    gates.desk.maintenance.gates.choose("tag", None if to is None else Limits(**to), time.time())
    assert len(starts(gates, 2, patience=2.0)) == 2


@pytest.mark.parametrize("to", [{"key_interval": 0.01}, {"max_running": 5}, None])
def test_a_changed_rate_of_keys_holds_at_once(gates: Gates, to: dict[str, Any] | None) -> None:
    gates.limit(key_interval=3600.0)
    gates.put(3, concurrency_key="a")
    starts(gates, 1)
    gates.desk.maintenance.gates.choose("tag", None if to is None else Limits(**to), time.time())
    assert len(starts(gates, 2, patience=2.0)) == 2


def test_an_open_breaker_stays_open_when_a_limit_changes(gates: Gates) -> None:
    gates.limit(max_failures=1, breaker_pause=3600.0)
    gates.work(gates.one(), Status.FAILED)
    gates.put(2)
    gates.limit(max_failures=1, breaker_pause=3600.0, max_running=5, interval=0.01)
    assert gates.claim() == []
    assert len(gates.pending()) == 1


def test_a_job_that_no_worker_takes_is_in_nobodys_way_and_keeps_to_the_rate_later(gates: Gates) -> None:
    gates.limit(interval=0.2)
    rare, _ = gates.put(2, requires="gpu")
    gates.put(3)
    times = [at for at, _ in starts(gates, 2)]
    assert times[1] - times[0] > 0.18
    assert gates.desk.claim(["tag"], capabilities="gpu", now=times[1] + 0.15) == []
    assert rare in gates.pending()
    [claim] = gates.desk.claim(["tag"], capabilities="gpu", now=times[1] + 0.21)
    assert claim.job_id == rare
    assert len(gates.pending()) == 2
