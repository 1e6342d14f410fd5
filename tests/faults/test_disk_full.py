"""The disk is full: nobody claims, everybody says why, and all goes on by itself when there is room."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor import StoreError
from supervisor.system.scoreboard import Scoreboard
from tests.faults.surroundings import command, fill, small_disk, stays
from tests.ledger import RECORDER
from tests.site_under_test import Site, kill, site, wait_for

POOL = """
[pools.work]
handler = "jobs:work"
workers = 2
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "16m") as folder:
        yield folder


@pytest.fixture
def full(tmp_path: Path, disk: Path) -> Iterator[Site]:
    """An installation on the small disk, whose ledger is elsewhere: the oracle must not be a victim."""
    ledger = tmp_path / "ledger"
    with site(disk, POOL) as made:
        made.ledger = ledger
        (disk / "ledger.py").write_text(RECORDER.replace("LEDGER", str(ledger)))
        yield made


@pytest.mark.fault(18)
def test_a_full_disk_stops_claiming_with_one_clear_error_and_nothing_is_lost(full: Site, tmp_path: Path) -> None:
    full.log = tmp_path / "log"
    full.start()
    jobs = full.queue.enqueue_many("work", [{"seconds": 1.5}, *[{"seconds": 0.1}] * 29])
    hit = jobs[0]  # still running when its worker is killed
    worker = full.running_pid(hit)
    with reading(full.database):
        filler = fill(full.folder)
        kill(worker)  # its death cannot be settled now
        with pytest.raises(StoreError, match="the disk is full"):
            full.queue.enqueue_many("work", [{"filler": "x" * 4000}] * 100)
        wait_for(lambda: [w for w in full.workers() if "the disk is full" in w.text], "the worker to give up")
        begun = full.ledger.read_text().count("start")
        shown = command(full, "status", "--json")
        assert "the disk is full" in json.loads(shown)["supervisors"][0]["trouble"]
        stays(lambda: full.ledger.read_text().count("start") == begun, 1.0)
        assert begun < len(jobs) / 2
    filler.unlink()
    for job in jobs:
        full.done(job)
    full.verdict(hit=[hit])
    assert full.job(hit).crashes == 1
    told: dict[str, list[str]] = {}
    for event in full.events():
        if is_full(event) or event["event"] == "store_recovered":
            told.setdefault(event.get("worker", event.get("process")), []).append(event["event"])
    for events in told.values():  # once an outage: a checkpoint may make room for small writes in between
        assert events == ["store_failed", "store_recovered"] * (len(events) // 2)
        assert len(events) <= 6


@pytest.mark.fault(18)
def test_scaling_up_and_logging_on_a_full_disk_kill_nobody(full: Site) -> None:
    """What grows with the number of workers must have its room before; what cannot be logged is not logged."""
    full.configure(POOL.replace("workers = 2", "min_workers = 1\nmax_workers = 20"))
    supervisor = full.start()
    first = full.queue.enqueue("work")
    full.done(first)
    jobs = full.queue.enqueue_many("work", [{"seconds": 0.01}] * 100, delay="1s")
    [board] = full.scoreboards()
    filler = fill(full.folder)
    wait_for(lambda: pools(board)["work"]["target"] == 20, "the pool to want more workers")
    wait_for(lambda: sum("the disk is full" in worker.text for worker in full.workers()) >= 19, "them all to wait")
    filler.unlink()
    for job in jobs:
        full.done(job, patience=60)
    full.verdict()
    assert full.stop(supervisor) == 0


@pytest.mark.fault(18)
def test_without_room_for_its_own_files_a_supervisor_says_so_and_ends(full: Site) -> None:
    filler = fill(full.folder)
    said = command(full, "run", code=3)
    assert said.count("\n") == 1
    assert "No space left on device" in said
    filler.unlink()
    full.start()
    full.done(full.queue.enqueue("work"))


@contextlib.contextmanager
def reading(database: Path) -> Iterator[None]:
    """A read transaction: until its end no checkpoint can make room for small writes in the write-ahead log."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM jobs").fetchall()
        yield


def is_full(event: dict[str, Any]) -> bool:
    return event["event"] == "store_failed" and "the disk is full" in event["error"]


def pools(scoreboard: Path) -> dict[str, Any]:
    """What the supervisor shows of its pools."""
    board = Scoreboard.open(scoreboard)
    assert board is not None
    return dict(board.supervisor_status()["pools"])
