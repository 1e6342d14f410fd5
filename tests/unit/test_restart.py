"""When a worker that died is replaced."""

from __future__ import annotations

from supervisor.domain.process_health import Restarts


def delays(restarts: Restarts, count: int) -> list[float]:
    found = []
    for _ in range(count):
        restarts = restarts.died(100.0, early=True)
        found.append(max(0.0, round(restarts.not_before - 100.0, 3)))
    return found


def test_early_deaths_in_a_row_back_off_up_to_half_a_minute_and_are_named_until_a_job_is_finished() -> None:
    assert delays(Restarts(), 15) == [0, 0, 0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30, 30]
    assert delays(Restarts(early_deaths=10**6), 1) == [30]
    looping = late = Restarts()
    for _ in range(4):
        looping = looping.died(100.0, early=True)
    assert "crash loop: 4 workers died" in looping.problem(100.0)
    assert delays(looping.committed_a_job(), 3) == [0, 0, 0]
    assert looping.committed_a_job().problem(100.0) == ""
    for _ in range(50):
        late = late.died(100.0, early=False)
    assert late.not_before <= 100.0
    assert late.problem(100.0) == ""


def test_deaths_of_one_moment_count_as_one_however_many() -> None:
    restarts = Restarts()
    for _ in range(50):
        restarts = restarts.died(100.0, early=True, born=90.0)
    for _ in range(50):
        restarts = restarts.broken(100.0, "why", born=90.0)

    assert (restarts.early_deaths, restarts.failed_setups, restarts.not_before) == (1, 0, 0.0)
    assert restarts.broken(101.0, "why", born=100.5).failed_setups == 1


def test_replacements_that_die_as_well_are_a_loop() -> None:
    restarts = Restarts()
    for generation in range(5):
        for _ in range(50):
            restarts = restarts.died(generation + 0.5, early=True, born=float(generation))

    assert restarts.early_deaths == 5
    assert round(restarts.not_before, 3) == 4.7


def test_a_broken_set_up_waits_longer_each_time_and_says_why_until_a_worker_is_ready() -> None:
    restarts, waits = Restarts(), []
    for _ in range(9):
        restarts = restarts.broken(100.0, "ImportError: no module named cv2")
        waits.append(restarts.not_before - 100.0)

    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert "no module named cv2 (tried 9 times" in restarts.problem(100.0)
    assert (restarts.ready().failed_setups, restarts.ready().problem(100.0)) == (0, "")
