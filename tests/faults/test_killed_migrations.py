"""A migration that is killed at any of its statements has been made whole, or not at all."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from supervisor.store.migrate import shipped
from supervisor.store.sqlite import schema
from supervisor.store.sqlite.connection import Connection
from supervisor.store.sqlite.place import Place

FENCES = 8
TOO_LONG = "x" * 1_100_000


def look(database: Path) -> tuple[str, list[str], list[tuple[object, ...]], list[tuple[object, ...]]]:
    """The schema's number, all definitions, and what stands in the tables that it changes."""
    with closing(sqlite3.connect(database)) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        [(version,)] = raw.execute("SELECT value FROM job_meta WHERE key = 'schema_version'").fetchall()
        texts = [row[0] for row in raw.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name")]
        jobs = raw.execute("SELECT id, type, length(payload), status, claim_token, crashes FROM jobs ORDER BY id")
        return version, texts, jobs.fetchall(), raw.execute("SELECT job_id, kind, message FROM job_errors").fetchall()


def killed_at(database: Path, statement: int) -> bool:
    """Migrate in a child that is killed when it comes to this statement; whether it came so far."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            connection = Connection(Place(database), synchronous="FULL")
            seen = 0

            def count(_: str) -> None:
                nonlocal seen
                seen += 1
                if seen == statement:
                    os.kill(os.getpid(), signal.SIGKILL)

            connection.raw.set_trace_callback(count)
            schema.migrate(connection)
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status != 0


@pytest.mark.long
@pytest.mark.fault(26)
def test_a_migration_killed_at_any_statement_leaves_the_old_schema_or_the_new_one(tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    connection = Connection(Place(old), synchronous="FULL", create=True)
    schema.migrate(connection, [one for one in shipped("supervisor.store.sqlite") if one.version < FENCES])
    connection.raw.execute("INSERT INTO jobs(type) VALUES ('tag')")
    connection.raw.execute("INSERT INTO jobs(type, payload) VALUES ('fat', ?)", (f'"{TOO_LONG}"',))
    connection.raw.execute("INSERT INTO jobs(id, type, crashes) VALUES (-3, 'odd', 9223372036854775807)")
    connection.raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    before = look(old)
    states = [before]  # each migration is a transaction of its own
    for version in range(FENCES, schema.newest_version() + 1):
        whole = tmp_path / f"whole-{version}.db"
        shutil.copy(old, whole)
        connection = Connection(Place(whole), synchronous="FULL")
        schema.migrate(connection, [one for one in shipped("supervisor.store.sqlite") if one.version <= version])
        connection.close()
        states.append(look(whole))
    after = states[-1]
    versions = [state[0] for state in states]
    assert versions == [str(version) for version in range(FENCES - 1, schema.newest_version() + 1)]
    assert len({tuple(state[1]) for state in states}) == len(states)

    statement, left = 0, []
    while True:
        statement += 1
        database = tmp_path / f"{statement}.db"
        shutil.copy(old, database)
        killed = killed_at(database, statement)
        found = look(database)
        assert found in states, statement
        left.append(found[0])
        if not killed:
            break
        assert not killed_at(database, 10**9)  # whoever comes next completes it
        assert look(database) == after
        for file in tmp_path.glob(f"{statement}.db*"):
            shutil.rmtree(file) if file.is_dir() else file.unlink()
    assert found == after
    assert left == sorted(left, key=int)
    assert left.count("7") > 12
