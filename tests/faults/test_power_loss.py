"""The power fails: only what was synced survives, and no enqueue that was acknowledged is lost."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.power import WRITTEN, Disk, Record, read
from tests.faults.shims import preload
from tests.faults.surroundings import command
from tests.site_under_test import MakeSite, Site, wait_for

# Every id is written down, in a file that the book knows, as soon as it is known: when enqueue has returned it, or
# somebody has waited for the job in vain.
CLIENT = """
import os, sys
from supervisor import Queue, WaitTimeout
from supervisor.client.waiting import Caller
url, count, how, durable = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4] == "durable"
queue = Queue(url)

async def nothing(caller):
    pass

if not durable and how == "waits":
    Caller.make_durable = nothing
elif not durable:
    queue._connections.store(queue._connections.writer)._connection.raw.execute("PRAGMA synchronous = NORMAL")
more = {"timeout": 0} if how == "waits" else {}
acks = os.open(url.removeprefix("sqlite:///") + "-acks", os.O_WRONLY | os.O_CREAT)
for number in range(count):
    try:
        job = (queue.run if how == "waits" else queue.enqueue)("work", {"text": "x" * 500}, **more)
    except WaitTimeout as error:
        job = error.job_id
    os.write(acks, b"%d " % job)
"""


class Book:
    """What was done to a database's files, and by whom: the processes started with its environment."""

    def __init__(self, database: Path, folder: Path) -> None:
        self.database = database
        self._file = folder / "book"
        self.environment = {
            **os.environ,
            **preload("power", folder),
            "POWER_OF": str(database),
            "POWER_LOG": str(self._file),
        }

    def enqueue(self, count: int, how: str = "enqueues", *, durable: bool = True) -> None:
        """Run a client that enqueues, as it does by itself, or without what makes its jobs durable."""
        kept = "durable" if durable else "lost"
        words = [sys.executable, "-c", CLIENT, f"sqlite:///{self.database}", str(count), how, kept]
        subprocess.run(words, env=self.environment, check=True, timeout=60)

    def moments(self) -> Iterator[tuple[Record, Disk, set[int]]]:
        """After each thing that was done: the disk, and the ids of the jobs that were acknowledged by then."""
        disk, acknowledged = Disk(self.database), set[int]()
        for record in read(self._file):
            if not self.acknowledges(record):
                disk.follow(record)
            elif record.what == WRITTEN:
                acknowledged |= {int(record.data)}
            yield record, disk, acknowledged

    def acknowledges(self, record: Record) -> bool:
        return record.name.endswith("-acks")


@pytest.mark.fault(20)
@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("how", ["enqueues", "waits"])
def test_no_acknowledged_enqueue_is_lost_with_the_power(tmp_path: Path, how: str, durable: bool) -> None:
    """As a Queue commits, whether it enqueues or waits in vain. Otherwise some are lost: so this test can tell."""
    book = Book(tmp_path / "new" / "app.db", tmp_path)
    book.database.parent.mkdir()
    book.enqueue(12, how, durable=durable)
    lost, moments = list[int](), 0
    for record, disk, acknowledged in book.moments():
        if book.acknowledges(record) and record.what == WRITTEN:
            moments += 1
            for dice in (None, random.Random(1), random.Random(2)):
                found = jobs_in(restored(disk.after_power_loss(dice), tmp_path / "restored"))
                lost += sorted(acknowledged - found)
    assert moments == 12
    assert (lost == []) is durable


@pytest.mark.sqlite
@pytest.mark.fault(20)
def test_whenever_the_power_fails_the_file_is_whole_and_every_acknowledged_job_is_there(
    make_site: MakeSite, tmp_path: Path
) -> None:
    """Clients, workers and a maintainer that checkpoints, cut off at any moment; what is left can be worked on."""
    site = make_site('[pools.work]\nhandler = "jobs:work"\nworkers = 2\n')
    site.queue.close()
    site.database.unlink()
    book = Book(site.database, tmp_path)
    book.enqueue(1)
    supervisor = site.start(env=book.environment)
    book.enqueue(30)
    wait_for(lambda: site.count("done") == 31, "all to be done")
    site.stop(supervisor)

    dice = random.Random(20)
    processes = [record.process for record, _, _ in book.moments()]
    assert len(set(processes)) >= 5  # two clients, two workers and the maintainer
    cuts = {*dice.sample(range(len(processes)), 40)}
    checked = 0
    for number, (_, disk, acknowledged) in enumerate(book.moments()):
        if number in cuts and acknowledged:
            checked += 1
            left = restored(disk.after_power_loss(dice), tmp_path / "restored")
            assert acknowledged <= jobs_in(left), number
            if checked % 10 == 0:
                drain(site, left, acknowledged)
    assert checked > 10


def restored(files: dict[str, bytes], folder: Path) -> Path:
    """Put what is left of the files into a folder of their own; returns the database's path."""
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        if old.is_file():
            old.unlink()
    for name, content in files.items():
        (folder / Path(name).name).write_bytes(content)
    return folder / "app.db"


def jobs_in(database: Path) -> set[int]:
    """The jobs of a database, which must be whole."""
    if not database.exists():
        return set()
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        try:
            return {row[0] for row in connection.execute("SELECT id FROM jobs")}
        except sqlite3.OperationalError:
            return set()  # not even the tables


def drain(site: Site, database: Path, jobs: set[int]) -> None:
    """Work on what is left, as the machine would after its next start."""
    command(site, "run", "--burst", "--database", f"sqlite:///{database}")
    with contextlib.closing(sqlite3.connect(database)) as connection:
        done = {row[0] for row in connection.execute("SELECT id FROM jobs WHERE status = 'done'")}
    assert jobs <= done
