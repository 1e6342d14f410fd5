"""The oracle of every fault test: a ledger outside the system, and what has to agree with it.

Handlers append a line at their start and one at their end to a file opened with O_APPEND, and sync it. A
trigger of the test's own notes every outcome that is recorded in a row, so that a second one shows even
where it wrote the same.
"""

from __future__ import annotations

import collections
import contextlib
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from supervisor import Queue
from supervisor.domain.job import NewJobs

# The module `ledger` of a test's handlers.
RECORDER = '''
import os, time

def record(what, ctx):
    """Append "start" or "end", with the job, its claim's token, the process and the time."""
    line = f"{what} {ctx.job_id} {ctx.token} {os.getpid()} {time.time()}\\n"
    fd = os.open("LEDGER", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode())
    os.fsync(fd)
    os.close(fd)
'''
WATCH = """
CREATE TABLE test_outcomes (job INTEGER, status TEXT, token INTEGER);
CREATE TRIGGER test_outcome AFTER UPDATE OF status ON jobs
WHEN NEW.status NOT IN ('pending', 'running', 'held')
BEGIN INSERT INTO test_outcomes VALUES (NEW.id, NEW.status, OLD.claim_token); END;
"""
WATCH_ON_A_SERVER = """
CREATE TABLE test_outcomes (job bigint, status text, token bigint);
CREATE FUNCTION test_outcome() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO test_outcomes VALUES (NEW.id, NEW.status, OLD.claim_token); RETURN NULL; END $$;
CREATE TRIGGER test_outcome AFTER UPDATE OF status ON jobs FOR EACH ROW
WHEN (NEW.status NOT IN ('pending', 'running', 'held')) EXECUTE FUNCTION test_outcome();
"""
CASUAL = ("gone", "pending", "held", "running")  # states of a job in which it has no outcome


class Line(NamedTuple):
    what: str
    job: int
    token: int
    pid: int
    at: float  # Unix seconds


def query(database: Path | str, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
    """Run a statement on a database as another program does: on a file, or on a server by its URL."""
    if isinstance(database, Path):
        with contextlib.closing(sqlite3.connect(database, timeout=30)) as connection, connection:
            return connection.execute(sql, parameters).fetchall()
    import psycopg

    with psycopg.connect(database, connect_timeout=30) as server:
        cursor = server.execute(sql.replace("%", "%%").replace("?", "%s"), parameters)
        return cursor.fetchall() if cursor.description else []


class Ledger:
    """What the handlers wrote, and the rows to compare it with. `database` is a file, or the URL of a server's."""

    def __init__(self, path: Path, database: Path | str) -> None:
        self._path = path
        self._database = database

    def watch_outcomes(self) -> None:
        if isinstance(self._database, str):
            query(self._database, WATCH_ON_A_SERVER)
            return
        with contextlib.closing(sqlite3.connect(self._database, timeout=30)) as connection:
            connection.executescript(WATCH)

    def lines(self) -> list[Line]:
        if not self._path.exists():
            return []
        words = [line.split() for line in self._path.read_text().splitlines()]
        return [Line(what, int(job), int(token), int(pid), float(at)) for what, job, token, pid, at in words]

    def tokens(self, what: str) -> dict[int, list[int]]:
        """The tokens of each job's starts, or ends, as they came; an empty list for any other job."""
        found: dict[int, list[int]] = collections.defaultdict(list)
        for line in self.lines():
            if line.what == what:
                found[line.job].append(line.token)
        return found

    def jobs(self) -> dict[int, tuple[str, int, int]]:
        """(status, attempts, crashes) of every job by its id."""
        rows = self._rows("SELECT id, status, attempts, crashes FROM jobs WHERE type <> 'never'")
        return {row[0]: row[1:] for row in rows}

    def outcomes(self) -> collections.Counter[int]:
        """How many outcomes were recorded for each job."""
        return collections.Counter(row[0] for row in self._rows("SELECT job FROM test_outcomes"))

    def damage(self) -> list[str]:
        if isinstance(self._database, str):
            return []
        return [row[0] for row in self._rows("PRAGMA integrity_check") if row[0] != "ok"]

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        return query(self._database, sql)


def wrongs(ledger: Ledger, expected: Mapping[int, str], hit: set[int], recorded: set[int]) -> list[str]:
    """Everything that is wrong, in words. `recorded` are the jobs whose handlers write to the ledger."""
    jobs, outcomes = ledger.jobs(), ledger.outcomes()
    starts, ends = ledger.tokens("start"), ledger.tokens("end")
    wrong = [f"the file is damaged: {words}" for words in ledger.damage()]
    wrong += [f"job {job} is unexpected" for job in sorted((jobs.keys() | starts.keys()) - expected.keys())]
    wrong += [f"job {job} ran twice under one claim" for job, tokens in starts.items() if repeated(tokens)]
    for job, status in expected.items():
        found, _, crashes = jobs.get(job, ("gone", 0, 0))
        if found != status:
            wrong.append(f"job {job} is {found}, not {status}")
        if outcomes[job] > 1 or (status not in CASUAL and not outcomes[job]):
            wrong.append(f"job {job} has {outcomes[job]} recorded outcomes")
        if job in recorded and status == "done" and job not in ends:
            wrong.append(f"job {job} is done, but no run of it ended")
        if job not in hit and (len(starts[job]) > 1 or crashes):
            wrong.append(f"job {job} was not hit, but ran {len(starts[job])} times with {crashes} crashes")
    return wrong


def repeated(tokens: list[int]) -> bool:
    """Whether one claim was run twice. A program has no token to write down: its claims are all 0."""
    tokens = [token for token in tokens if token]
    return len(set(tokens)) < len(tokens)


class Remembering(Queue):
    """Knows which jobs were acknowledged: those must never be lost."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.acknowledged: set[int] = set()

    def put(self, *args: Any, **options: Any) -> tuple[int, bool]:
        job_id, new = super().put(*args, **options)
        self.acknowledged.add(job_id)
        return job_id, new

    def insert(self, jobs: NewJobs, *, connection: object = None) -> list[int]:
        ids = super().insert(jobs, connection=connection)
        self.acknowledged.update(ids)
        return ids
