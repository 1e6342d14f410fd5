"""A pool's choices among its own workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from supervisor.config import load
from supervisor.processes.pool import Pool
from supervisor.processes.worker_process import WorkerProcess
from supervisor.system.scoreboard import Scoreboard


class Crew:
    """A pool of devices 0 and 1 whose workers are there in name only."""

    def __init__(self, folder: Path) -> None:
        (folder / "supervisor.toml").write_text('[pools.tag]\nhandler = "jobs:tag"\nworkers = 3\ngpus = [0, 1]\n')
        self.pool = Pool(load(folder / "supervisor.toml").pools["tag"], os.eventfd(0))
        self.pool.target = 3
        self._board = Scoreboard.create(folder / "board")
        self._number = 0

    def ask(self, *, device: str | None = None) -> WorkerProcess:
        self._number += 1
        name, slot = self.pool.next_name(), self._board.slot(self._number)
        device = device or self.pool.next_device(name)
        worker = WorkerProcess(name, name, self._number, slot, cast("Any", None), self.pool, 0.0, device)
        self.pool.workers[f"{self._number}"] = worker
        return worker

    def bury(self, worker: WorkerProcess) -> None:
        self.pool.workers = {key: other for key, other in self.pool.workers.items() if other is not worker}


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    made = Crew(tmp_path)
    yield made
    made.pool.close()


def test_a_new_worker_gets_the_device_that_the_fewest_have(crew: Crew) -> None:
    assert [crew.ask().device for _ in range(3)] == ["0", "1", "0"]


def test_the_replacements_of_dead_workers_get_their_devices(crew: Crew) -> None:
    workers = [crew.ask() for _ in range(4)]
    for worker in workers[1:3]:
        crew.bury(worker)

    assert [(worker.name, worker.device) for worker in (crew.ask(), crew.ask())] == [("tag-2", "1"), ("tag-3", "0")]


def test_each_stale_worker_is_succeeded_on_its_own_device(crew: Crew) -> None:
    first, second, third = (crew.ask(device=device) for device in ("1", "0", "1"))
    for worker in (first, second, third):
        worker.stale = "reload"

    assert crew.ask().device == "1"
    assert crew.ask().device == "0"  # although the first has not been told to leave yet
    first.draining = second.draining = True
    assert crew.ask().device == "1"


def test_a_pool_that_grows_counts_the_devices_of_those_about_to_be_replaced(crew: Crew) -> None:
    crew.ask(device="0").stale = "near max_jobs_per_worker"

    assert crew.ask().device == "1"
