"""A large move, killed on the way, there and back; workers on the target run what was waiting.

`MOVE_JOBS=1000000 pytest -s tests/faults/test_large_moves.py` moves a million jobs, and says what that took.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from supervisor.engine import open_engine
from supervisor.system.failpoints import VARIABLE
from tests.ledger import RECORDER, Ledger, query
from tests.postgres_server import Databases

JOBS = int(os.environ.get("MOVE_JOBS", "4000"))
BLOCKS = max(JOBS // 1000, 1)  # of the table of jobs
WAITING = min(max(JOBS // 50, 100), 20_000)
KILLED_AT = (
    "move.closed=kill",
    f"move.copied=kill@{BLOCKS // 3 + 1}",
    "move.arrived=kill",
)
CONFIG = """
[pools.work]
handler = "jobs:work"
workers = 2
[retention]
done = "10000d"
failed = "10000d"
"""
HANDLER = """
from ledger import record

def work(payload, ctx):
    record("start", ctx)
    record("end", ctx)
    return payload["n"]
"""
FILL = f"""
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {JOBS})
INSERT INTO jobs (type, payload, status, attempts, claim_token, scheduled_at, created_at, updated_at, started_at,
                  completed_at, result, last_error, unique_key, meta)
SELECT 'work', json_object('n', n, 'path', 'pictures/' || n || '.jpg', 'words', 'héllo 你好'), s.status,
       s.status <> 'pending', s.status <> 'pending', 1.7e9 + n / 7.0, 1.7e9 + n / 7.0, 1.7e9 + n / 3.0,
       iif(s.status <> 'pending', 1.7e9 + n / 5.0, NULL), iif(s.status <> 'pending', 1.7e9 + n / 3.0, NULL),
       iif(s.status = 'done', json_object('n', n), NULL), iif(s.status = 'failed', 'ValueError: ' || n, NULL),
       iif(n % 5 = 0, 'key ' || n, NULL), iif(n % 9 = 0, '{{"tags": ["a"]}}', NULL)
FROM (SELECT n, iif(n > {JOBS - WAITING}, 'pending', iif(n % 20 = 0, 'failed', 'done')) AS status FROM numbers) AS s;
INSERT INTO job_errors (job_id, attempt, kind, message, traceback, worker, duration, created_at)
SELECT id, 1, 'exception', last_error, 'Traceback' || char(10) || 'of ' || id, 'work-1', id / 7.0, completed_at
FROM jobs WHERE status = 'failed';
INSERT INTO job_runs (job_id, token, attempt, outcome, worker, started_at, duration, cpu_time, peak_memory, log)
SELECT id, 1, 1, status, 'work-1', started_at, id / 11.0, id / 13.0, 1000 * id, 'line of ' || id
FROM jobs WHERE status IN ('done', 'failed') AND id % 2 = 0;
"""


class Cost(NamedTuple):
    """Of the command `supervisor move`, all its starts together."""

    wall: float  # seconds
    cpu: float  # seconds
    memory: int  # bytes, of the largest

    def __str__(self) -> str:
        return f"{self.wall:.0f} s, {self.cpu:.0f} s of CPU, {self.memory / 1e6:.0f} MB"


def started(folder: Path, *words: str, points: str = "") -> subprocess.Popen[bytes]:
    environment = os.environ | ({VARIABLE: points} if points else {})
    with (folder / "output").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "supervisor", *words], cwd=folder, env=environment, stdout=output, stderr=output
        )


def moved(folder: Path, source: str, target: str) -> tuple[dict[str, Any], Cost]:
    """Move, and be killed each time that is planned. Returns what the last start says."""
    began, cpu, memory = time.monotonic(), 0.0, 0
    for points in (*KILLED_AT, ""):
        process = started(folder, "move", "--json", source, target, points=points)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == (-signal.SIGKILL if points else 0), (folder / "output").read_text()
        cpu, memory = cpu + used.ru_utime + used.ru_stime, max(memory, used.ru_maxrss * 1024)
        if points:  # nobody can use what is not complete
            refused = started(folder, "status", "--database", target)
            assert refused.wait() == 3
            assert "moved" in (folder / "output").read_text()
    return json.loads((folder / "output").read_text()), Cost(time.monotonic() - began, cpu, memory)


def worked(folder: Path, url: str) -> None:
    """Run what is due there, and nothing else."""
    (folder / "supervisor.toml").write_text(f'database = "{url}"\n{CONFIG}')
    ledger = folder / "ledger"
    ledger.unlink(missing_ok=True)
    (folder / "jobs.py").write_text(HANDLER)
    (folder / "ledger.py").write_text(RECORDER.replace("LEDGER", str(ledger)))
    where = Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else url
    Ledger(ledger, where).watch_outcomes()
    waiting = {row[0] for row in query(where, "SELECT id FROM jobs WHERE status = 'pending'")}
    supervisor = started(folder, "run", "--burst")
    assert supervisor.wait() == 0, (folder / "output").read_text()[-4000:]
    seen = Ledger(ledger, where)
    assert {job: len(tokens) for job, tokens in seen.tokens("end").items()} == dict.fromkeys(waiting, 1)
    assert seen.outcomes() == dict.fromkeys(waiting, 1)
    assert query(where, "SELECT count(*) FROM jobs WHERE status = 'pending'") == [(0,)]
    query(where, "DROP TRIGGER test_outcome" + ("" if isinstance(where, Path) else " ON jobs"))
    query(where, "DROP TABLE test_outcomes")


def all_rows(url: str) -> dict[str, tuple[int, str]]:
    """The number and a digest of the rows of each table, read as another program would."""
    found = {}
    with contextlib.ExitStack() as stack:
        if url.startswith("sqlite"):
            raw: Any = stack.enter_context(closing(sqlite3.connect(url.removeprefix("sqlite:///"))))
            read: Callable[[str], Iterator[tuple[Any, ...]]] = raw.execute
        else:
            server = stack.enter_context(psycopg.connect(url))

            def read(sql: str) -> Iterator[tuple[Any, ...]]:
                cursor = server.cursor("rows")
                cursor.itersize = 5000
                with cursor:
                    yield from cursor.execute(sql)

        for table, columns, order in (
            (
                "jobs",
                "id, type, payload, status, priority, requires, scheduled_at, attempts, max_attempts, crashes,"
                " locked_by, locked_at, lock_expires_at, claim_token, cancel_requested_at, unique_key, progress,"
                " result, last_error, created_at, updated_at, started_at, completed_at, meta, progress_text",
                "id",
            ),
            ("job_errors", "id, job_id, attempt, kind, message, traceback, worker, duration, created_at", "id"),
            (
                "job_runs",
                "job_id, token, attempt, outcome, worker, started_at, duration, cpu_time, peak_memory, log",
                "job_id, token",
            ),
        ):
            digest, count = hashlib.sha256(), 0
            for row in read(f"SELECT {columns} FROM {table} ORDER BY {order}"):
                digest.update(repr(row).encode())
                count += 1
            found[table] = count, digest.hexdigest()
    return found


@pytest.mark.long
@pytest.mark.timeout(6 * 3600)
def test_a_large_move_that_is_killed_five_times_loses_and_doubles_nothing_there_and_back(
    postgres: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    first, server, last = f"sqlite:///{tmp_path}/first.db", postgres.fresh_database(), f"sqlite:///{tmp_path}/last.db"
    open_engine(first).database.migrate()
    with closing(sqlite3.connect(tmp_path / "first.db")) as raw:
        raw.executescript(FILL)
    rows = all_rows(first)
    assert rows["jobs"][0] == JOBS

    there, cost = moved(tmp_path, first, server)
    sys.stdout.write(f"\n{JOBS} jobs, there: {cost}\n")
    assert all_rows(server) == rows
    began = time.monotonic()
    worked(tmp_path, server)
    sys.stdout.write(f"{WAITING} jobs run there: {time.monotonic() - began:.0f} s\n")

    rows = all_rows(server)
    back, cost = moved(tmp_path, server, last)
    sys.stdout.write(f"back: {cost}\n")
    assert all_rows(last) == rows
    assert back["rows"]["jobs"] == there["rows"]["jobs"] == JOBS
    query(tmp_path / "last.db", "INSERT INTO jobs (type, payload) VALUES ('work', '{\"n\": 0}')")
    worked(tmp_path, last)
    assert query(tmp_path / "last.db", "SELECT max(id) > ? FROM jobs", JOBS) == [(1,)]
