"""A request's job wakes an idle worker of its pool at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.admin.requests import wake_for
from supervisor.domain.enqueueing import new_request
from supervisor.domain.job import NewJob
from supervisor.store.base import JobSelector
from supervisor.system.scoreboard import Scoreboard
from supervisor.system.slot import State

TAKES = {
    "first": JobSelector(("tag", "both")),
    "second": JobSelector(("both",)),
}


@pytest.fixture
def board(tmp_path: Path) -> Scoreboard:
    return Scoreboard.create(tmp_path / "board")


@pytest.fixture
def wakes() -> Iterator[dict[str, int]]:
    made = {name: os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for name in ("first", "second")}
    yield made
    for number in made.values():
        os.close(number)


def worker(board: Scoreboard, number: int, name: str, state: State) -> None:
    board.use_up_to(number)
    slot = board.slot(number)
    slot.assign(f"i{number}", name)
    slot.page.pid = 1
    slot.state(state)


def woken(wakes: dict[str, int]) -> dict[str, int]:
    found = {}
    for name, number in wakes.items():
        try:
            found[name] = os.eventfd_read(number)
        except BlockingIOError:
            found[name] = 0
    return found


def test_as_many_workers_are_woken_as_are_idle_and_have_a_job(board: Scoreboard, wakes: dict[str, int]) -> None:
    def wake(jobs: list[NewJob]) -> None:
        wake_for(jobs, board, wakes, TAKES)

    wake([new_request("tag")])
    assert woken(wakes) == {"first": 0, "second": 0}  # nobody is there

    worker(board, 1, "first-1", State.IDLE)
    worker(board, 2, "first-2", State.BUSY)
    worker(board, 3, "second-1", State.IDLE)
    worker(board, 4, "second-2", State.IDLE)
    wake([])
    assert woken(wakes) == {"first": 0, "second": 0}
    wake([new_request("tag") for _ in range(3)])
    assert woken(wakes) == {"first": 1, "second": 0}
    wake([new_request("both") for _ in range(9)])
    assert woken(wakes) == {"first": 1, "second": 2}
    wake([new_request("lost"), new_request("unknown")])
    assert woken(wakes) == {"first": 0, "second": 0}


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
def test_of_pools_that_take_a_job_the_first_of_the_configuration_is_woken(
    board: Scoreboard, wakes: dict[str, int], order: tuple[str, str]
) -> None:
    worker(board, 1, "first-1", State.IDLE)
    worker(board, 2, "second-1", State.IDLE)
    wake_for([new_request("tag")], board, wakes, {name: JobSelector(("tag",)) for name in order})
    assert woken(wakes) == {order[0]: 1, order[1]: 0}


def test_a_pool_for_urgent_jobs_is_woken_for_these_alone(board: Scoreboard, wakes: dict[str, int]) -> None:
    worker(board, 1, "first-1", State.IDLE)
    worker(board, 2, "second-1", State.IDLE)
    takes = {"first": JobSelector(("tag",), min_priority=10), "second": JobSelector(("tag",))}
    wake_for([new_request("tag", priority=9)], board, wakes, takes)
    assert woken(wakes) == {"first": 0, "second": 1}
    wake_for([new_request("tag", priority=10)], board, wakes, takes)
    assert woken(wakes) == {"first": 1, "second": 0}
