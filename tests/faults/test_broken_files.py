"""Files that the processes share are garbled, cut short or taken away: whoever uses them goes on."""

from __future__ import annotations

import math
import os
import struct
import time
from pathlib import Path

import pytest

from supervisor.engine import open_engine
from supervisor.store.sqlite.files import DatabaseFiles
from supervisor.store.sqlite.writelock import PATIENCE, WriteLock, WriterWatch
from supervisor.system.scoreboard import STATUS_BYTES, Scoreboard
from tests.stopwatch import Stopwatch


@pytest.fixture
def files(tmp_path: Path) -> DatabaseFiles:
    database = tmp_path / "app.db"
    open_engine(f"sqlite:///{database}").database.migrate()
    return DatabaseFiles(database)


WORDS = 8
GARBAGE = {
    "not a number": [math.nan] * WORDS,
    "infinite": [math.inf] * WORDS,
    "below everything": [-math.inf] * WORDS,
    "far in the future": [1e300] * WORDS,
    "negative": [-1e300] * WORDS,
}


@pytest.mark.fault(69)
@pytest.mark.parametrize("words", GARBAGE.values(), ids=GARBAGE)
def test_a_garbled_account_holds_up_no_writer_and_does_not_last(files: DatabaseFiles, words: list[float]) -> None:
    lock = WriteLock(files)
    files.write_lock.write_bytes(struct.pack(f"{WORDS}d", *words))
    WriterWatch(files).holder()  # and whoever looks does not stumble
    watch = Stopwatch()
    for _ in range(20):
        lock.acquire()
        lock.release()
    assert watch.seconds() < PATIENCE
    lock.close()


@pytest.mark.fault(69)
@pytest.mark.parametrize("how", ["deleted", "replaced", "folder deleted", "cut short"])
def test_a_writers_lock_that_somebody_takes_away_is_one_lock_again_within_a_second(
    files: DatabaseFiles, how: str
) -> None:
    first = WriteLock(files)
    if how == "cut short":
        os.truncate(files.write_lock, 0)
        time.sleep(1.1)  # the time after which it looks
    else:
        files.write_lock.unlink()
        if how == "replaced":
            files.write_lock.touch()
        elif how == "folder deleted":
            for path in files.folder.iterdir():
                path.unlink()
            files.folder.rmdir()
        time.sleep(1.1)
    first.acquire()
    second = WriteLock(files)
    assert not second._try()
    holder = WriterWatch(files).holder()
    assert holder is not None
    assert holder.pid == os.getpid()
    first.release()
    assert second._try()
    first.close()
    second.close()


@pytest.mark.fault(69)
@pytest.mark.parametrize("pools", [1, 20, 2000])
def test_a_bulletin_that_is_too_large_is_cut_and_says_so(tmp_path: Path, pools: int) -> None:
    board = Scoreboard.create(tmp_path / "scoreboard")
    board.post({"pid": 1, "trouble": "", "pools": {}})
    pool = {"size": 1, "problem": "x" * (4 * STATUS_BYTES // pools), "types": ["t" * 50] * (20_000 // pools)}
    board.post({"pid": 2, "trouble": "", "pools": {f"pool-{number}": pool for number in range(pools)}})
    news = board.supervisor_status()
    assert news["pid"] == 2
    assert news["clipped"] is True
    if pools < 2000:
        assert len(news["pools"]) == pools
        assert all(set(found) == set(pool) for found in news["pools"].values())
