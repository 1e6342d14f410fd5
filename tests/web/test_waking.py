"""A request's job wakes an idle worker of its pool at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.admin.waking import Waking
from supervisor.domain.intake import new_request
from supervisor.system.scoreboard import Scoreboard
from supervisor.system.slot import State

TYPES = {"first": ["tag", "both"], "second": ["both"], "gone": ["lost"]}


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
    slot.occupy(1)
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
    waking = Waking(board, wakes, TYPES)
    waking.wake([new_request("tag")])
    assert woken(wakes) == {"first": 0, "second": 0}  # nobody is there

    worker(board, 1, "first-1", State.IDLE)
    worker(board, 2, "first-2", State.BUSY)
    worker(board, 3, "second-1", State.IDLE)
    worker(board, 4, "second-2", State.IDLE)
    waking.wake([])
    assert woken(wakes) == {"first": 0, "second": 0}
    waking.wake([new_request("tag") for _ in range(3)])
    assert woken(wakes) == {"first": 1, "second": 0}
    waking.wake([new_request("both") for _ in range(9)])
    assert woken(wakes) == {"first": 1, "second": 2}
    waking.wake([new_request("lost"), new_request("unknown")])
    assert woken(wakes) == {"first": 0, "second": 0}
