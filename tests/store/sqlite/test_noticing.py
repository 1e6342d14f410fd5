"""What announces a commit of another program, and how many looks it takes to see it."""

from __future__ import annotations

import select
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.engine import open_engine
from supervisor.maintenance.waking import CommitWatch

COMMITS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
for line in sys.stdin:
    connection.executescript(f"PRAGMA synchronous = {line}; INSERT INTO visits VALUES (1)")
"""


class Noticing(CommitWatch):
    def __init__(self, folder: Path) -> None:
        self.log = folder / "jobs.db-wal"
        engine = open_engine(f"sqlite:///{folder}/jobs.db")
        engine.database.migrate()
        self.other = sqlite3.connect(folder / "jobs.db", isolation_level=None)
        self.other.execute("CREATE TABLE visits (at)")
        self.feed = engine.changes()
        super().__init__(self.feed)
        while self.look() or self.expects_more:
            pass  # until all that was before has been found

    @property
    def expects_more(self) -> bool:
        return self.feed.unhinted < self.every

    def hinted(self, patience: float = 0.0) -> bool:
        return bool(select.select([self.feed], [], [], patience)[0])

    def look(self) -> bool:
        """One, as in the maintainer's sleep. Whether anything new was found."""
        if self.hinted():
            self.take_hints()
        found = self.run(0.0).news
        self.woke(idle=True, woken=int(found))
        return found


@pytest.fixture
def noticing(tmp_path: Path) -> Iterator[Noticing]:
    made = Noticing(tmp_path)
    yield made
    made.other.close()
    made.close()


def test_a_log_file_in_the_folder_announces_nothing_and_one_look_sees_a_commit(noticing: Noticing) -> None:
    with noticing.log.with_name("jobs.db.log").open("ab", buffering=0) as log:
        for _ in range(200):
            log.write(b"GET /\n")
    assert not noticing.hinted()
    noticing.other.execute("INSERT INTO visits VALUES (1)")
    assert noticing.hinted()
    assert noticing.look()
    assert not noticing.expects_more


def test_beside_a_writer_a_commit_that_was_found_is_not_all_that_was_announced(noticing: Noticing) -> None:
    noticing.other.execute("INSERT INTO visits VALUES (1)")
    noticing.other.execute("PRAGMA cache_size = 1")
    noticing.other.execute("BEGIN IMMEDIATE")
    noticing.other.executemany("INSERT INTO visits VALUES (randomblob(4000))", [()] * 50)  # more than it keeps
    assert noticing.look()
    assert noticing.expects_more
    noticing.other.execute("COMMIT")
    assert noticing.look()
    assert not noticing.expects_more


def test_no_commit_of_another_process_waits_for_the_safety_net(noticing: Noticing) -> None:
    command = [sys.executable, "-c", COMMITS, str(noticing.log.with_name("jobs.db"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, bufsize=1) as writer:
        assert writer.stdin is not None
        for number in range(100):
            writer.stdin.write(("FULL\n", "NORMAL\n")[number % 2])
            found = False
            while not found:  # each look is made for a hint, or because the one before asks for it
                assert noticing.expects_more or noticing.hinted(60.0)
                found = noticing.look()


def test_the_files_that_have_the_names_now_are_watched(noticing: Noticing) -> None:
    noticing.log.rename(noticing.log.with_name("old"))
    noticing.log.touch()
    noticing.feed.pause()
    assert noticing.feed.resume()
    assert not noticing.feed.drain()
    noticing.log.write_bytes(b"new")
    assert noticing.hinted()
