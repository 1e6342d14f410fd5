"""`migrate --print`: what an administrator runs leaves the same schema as `migrate`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from supervisor import Queue
from supervisor.cli import main
from supervisor.engine import open_engine
from supervisor.store.postgres import schema
from supervisor.store.postgres.address import Address
from supervisor.store.postgres.connection import Connection
from tests import next_release
from tests.postgres_server import Databases

_SHAPE = """
SELECT 'column', table_name, column_name, data_type || is_nullable || coalesce(column_default, '')
  FROM information_schema.columns WHERE table_schema = 'jobs'
UNION ALL SELECT 'index', tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'jobs'
UNION ALL SELECT 'function', proname, coalesce(proconfig::text, ''), prosrc FROM pg_proc
  WHERE pronamespace = 'jobs'::regnamespace
UNION ALL SELECT 'trigger', tgrelid::regclass::text, tgname, pg_get_triggerdef(oid) FROM pg_trigger
  WHERE NOT tgisinternal
UNION ALL SELECT 'meta', key, '', value FROM jobs.job_meta WHERE key <> 'epoch'
ORDER BY 1, 2, 3
"""


@pytest.fixture
def fresh(postgres: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Two databases with an empty schema of their own in the URL."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    urls = [postgres.fresh_database() for _ in range(2)]
    for url in urls:
        with psycopg.connect(url) as connection:
            connection.execute("CREATE SCHEMA jobs")
    here, there = (f"{url}?options=-csearch_path%3Djobs" for url in urls)
    return here, there


def shape(url: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        return connection.execute(_SHAPE.encode()).fetchall()


@pytest.mark.parametrize("older", [0, 1])
def test_what_an_administrator_runs_leaves_the_same_schema(
    fresh: tuple[str, str], older: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = fresh
    if older:
        open_engine(here).database.migrate()
        monkeypatch.setattr(schema, "shipped", lambda package: next_release.plan("postgres"))
    open_engine(there).database.migrate()
    assert main(["--database", here, "migrate", "--print"]) == 0
    script = capsys.readouterr().out
    assert f"-- job-supervisor: the schema {older} becomes " in script
    with closing(Connection(Address(here))) as connection:
        assert schema._look(connection.rows, here).version == older  # nothing has been changed
    with psycopg.connect(here.partition("?")[0], autocommit=True) as administrator:  # another search path
        administrator.execute(script.encode())
    assert shape(here) == shape(there)
    assert main(["--database", here, "migrate", "--print"]) == 0
    assert capsys.readouterr().out == "-- up to date\n"
    assert open_engine(here).database.migrate() == []
    assert Queue(here).enqueue("tag") == 1


def test_an_sqlite_file_has_no_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--database", f"sqlite:///{tmp_path}/x.db", "migrate", "--print"]) == 3
    assert "--print is for PostgreSQL" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
