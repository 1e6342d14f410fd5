"""Rates, and the breaker."""

from __future__ import annotations

import itertools
import time

from supervisor.domain.job import Status
from supervisor.domain.limits import interval_of
from supervisor.domain.settlement import done
from tests.store.gates.conftest import Gates


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
    found = starts(gates, 25)
    times = [at for at, _ in found]
    assert [job for _, job in found] == jobs
    assert all(later - at > 1.0 for at, later in zip(times, times[20:], strict=False))
    assert times[-1] - times[0] < 24 * 0.05 * 1.25 + 0.3


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
