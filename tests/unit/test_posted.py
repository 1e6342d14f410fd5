"""What a supervisor posts for other hosts says the same there, and is the same text until something changes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from supervisor.domain.job import Claim
from supervisor.maintenance.recovery import begun_run
from supervisor.system.published import PublishedBoard, publish, read_published
from supervisor.system.scoreboard import Scoreboard
from supervisor.system.slot import State


@pytest.fixture
def board(tmp_path: Path) -> Scoreboard:
    board = Scoreboard.create(tmp_path / "scoreboard-s1")
    board.use_up_to(3)
    for number in (1, 2):
        slot = board.slot(number)
        slot.assign(f"incarnation-{number}", f"tag-{number}")
        slot.page.pid = 100 + number
        slot.state(State.IDLE)
    board.slot(2).state(State.BUSY)
    board.slot(2).page.claims = 3
    board.slot(2).begin(7, 2, time.monotonic() - 60, 0.0, batch=2)
    board.slot(2).progress(0.5, "half of it")
    board.post({"pools": {"tag": {"types": ["tag"]}}})
    return board


def test_it_is_read_as_it_was(board: Scoreboard) -> None:
    posted = read_published(publish(board), time.time())
    assert posted.status == {"pools": {"tag": {"types": ["tag"]}}}
    assert list(posted.workers) == [1, 2]
    idle, busy = posted.workers.values()
    assert (idle.state, idle.name, idle.job, idle.progress) == (State.IDLE, "tag-1", 0, None)
    assert (busy.state, busy.pid, busy.incarnation) == (State.BUSY, 102, "incarnation-2")
    assert (busy.job, busy.token, busy.together, busy.claims) == (7, 2, 2, 3)
    assert (busy.progress, busy.text) == (0.5, "half of it")
    assert 55 < time.monotonic() - busy.started < 65


def test_heartbeats_change_nothing_in_it(board: Scoreboard) -> None:
    first = publish(board)
    for number in (1, 2):
        board.slot(number).beat()
    assert publish(board) == first
    board.slot(2).finish(1)
    assert publish(board) != first


def claim(job: int, token: int) -> Claim:
    return Claim(job, token, "tag", "{}", 1, None, 0, 0.0)


def test_a_run_that_had_begun_is_known_only_while_its_claim_is_held(board: Scoreboard) -> None:
    posted = read_published(publish(board)).workers
    assert begun_run(posted[2], [claim(6, 1), claim(7, 2)], current=False) == ((7, 2), 2)
    assert begun_run(posted[2], [claim(7, 3)], current=False) == (None, 1)  # it may have begun another one since
    assert begun_run(posted[1], [claim(6, 1)], current=False) == (None, 1)
    assert begun_run(None, [claim(6, 1)], current=False) == (None, 1)
    assert begun_run(posted[1], [claim(6, 1)], current=True) == ((0, 0), 1)  # its own slot says that none had
    board.slot(2).page.concurrency = 10
    several = read_published(publish(board)).workers[2]
    assert begun_run(several, [claim(6, 1), claim(7, 2), claim(8, 1)], current=False) == (None, 3)


NONE = [
    "",
    "{",
    "[]",
    "{}",
    '{"status": 1, "workers": []}',
    '{"status": {}, "workers": [1]}',
    '{"status": {"pools": {"a": 1}}, "workers": []}',
    '{"status": {"pools": []}, "workers": []}',
    "9" * 5000,
    "[" * 5000,
]


@pytest.mark.parametrize("text", NONE)
def test_whatever_somebody_has_written_there_breaks_nothing(text: str) -> None:
    assert read_published(text) == PublishedBoard({}, {})
