"""When a worker that died is replaced."""

from __future__ import annotations

from supervisor.domain.process_health import Restarts


def delays(restarts: Restarts, count: int) -> list[float]:
    found = []
    for _ in range(count):
        restarts = restarts.died(100.0, early=True)
        found.append(max(0.0, round(restarts.not_before - 100.0, 3)))
    return found


def test_deaths_after_a_finished_job_cost_no_delay_however_many() -> None:
    restarts = Restarts()
    for _ in range(50):
        restarts = restarts.died(100.0, early=False)

    assert restarts.not_before <= 100.0
    assert restarts.problem(100.0) == ""


def test_early_deaths_in_a_row_back_off_up_to_half_a_minute() -> None:
    assert delays(Restarts(), 15) == [0, 0, 0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30, 30]


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


def test_a_crash_loop_is_named_with_its_next_try() -> None:
    restarts = Restarts()
    for _ in range(4):
        restarts = restarts.died(100.0, early=True)

    assert "crash loop: 4 workers died" in restarts.problem(100.0)


def test_a_finished_job_ends_the_loop() -> None:
    looping = Restarts().died(1, early=True).died(1, early=True).died(1, early=True).died(1, early=True)

    assert delays(looping.committed_a_job(), 3) == [0, 0, 0]
    assert looping.committed_a_job().problem(1) == ""


def test_a_broken_set_up_waits_longer_each_time_and_says_why() -> None:
    restarts, waits = Restarts(), []
    for _ in range(9):
        restarts = restarts.broken(100.0, "ImportError: no module named cv2")
        waits.append(restarts.not_before - 100.0)

    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert "no module named cv2 (tried 9 times" in restarts.problem(100.0)


def test_a_worker_that_gets_ready_ends_the_trouble_with_its_set_up() -> None:
    restarts = Restarts().broken(1.0, "why").ready()

    assert (restarts.failed_setups, restarts.problem(1.0)) == (0, "")


def test_endless_loops_keep_finite_delays() -> None:
    assert delays(Restarts(early_deaths=10**6), 1) == [30]
