"""What cannot be used is told in one sentence, without the password."""

from __future__ import annotations

import contextlib
import time
from urllib.parse import urlsplit

import psycopg
import pytest

from supervisor.domain.errors import StoreError
from supervisor.engine import open_engine
from supervisor.store.base import Engine, JobSelector
from supervisor.store.postgres import connection as connections
from tests.postgres_server import Databases
from tests.store.kit import Desk


def problem(url: str) -> str:
    """Why a database cannot be migrated."""
    with pytest.raises(StoreError) as caught:
        open_engine(url).database.migrate()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def changed(url: str, *, who: str = "", where: str = "", path: str = "") -> str:
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{who or user}@{where or host}", path=path or parts.path).geturl()


def test_a_url_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is not understood" in problem("postgresql://host:port/x?what=5")


def test_a_server_that_is_not_there(postgres: Databases) -> None:
    words = problem(changed(postgres.dsn, who="ann:secret", where="127.0.0.1:1"))

    assert "postgresql://ann@127.0.0.1:1" in words
    assert "secret" not in words
    assert "refused" in words


def test_a_database_that_does_not_exist(postgres: Databases) -> None:
    assert problem(changed(postgres.dsn, path="/nowhere")).endswith('/nowhere: database "nowhere" does not exist')


def test_a_server_that_is_too_old(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MINIMUM_SERVER", 990000)

    assert "at least" in problem(engine.url)


@pytest.fixture
def stranger(engine: Engine) -> str:
    """The URL of a user without any right to create."""
    with psycopg.connect(engine.url, autocommit=True) as connection:
        with contextlib.suppress(psycopg.errors.DuplicateObject):
            connection.execute("CREATE ROLE stranger LOGIN PASSWORD 'stranger'")
        connection.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    return changed(engine.url, who="stranger:stranger")


def test_a_user_who_may_not_create_tables(stranger: str) -> None:
    words = problem(stranger)

    assert "permission denied for schema public" in words
    assert "lacks a right" in words


def test_a_user_who_may_not_read_the_tables(engine: Engine, stranger: str) -> None:
    engine.database.migrate()
    with pytest.raises(StoreError, match="permission denied for table job_meta; this user lacks a right"):
        open_engine(stranger).operations()


def test_tables_that_are_missing_or_anothers(engine: Engine) -> None:
    with pytest.raises(StoreError, match="has no job tables yet; `supervisor migrate` fixes that"):
        engine.operations()
    with psycopg.connect(engine.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE jobs (id integer)")
    assert "another program" in problem(engine.url)


def test_a_server_that_is_read_only(engine: Engine) -> None:
    engine.database.migrate()
    words = problem(f"{engine.url}?options=-c%20default_transaction_read_only%3Don")

    assert "read-only" in words


def test_a_newer_schema_that_knows_no_older_programs(engine: Engine) -> None:
    engine.database.migrate()
    with psycopg.connect(engine.url, autocommit=True) as connection:
        connection.execute("UPDATE job_meta SET value = '999' WHERE key IN ('schema', 'oldest_writer')")

    assert "this one knows schema" in problem(engine.url)


def test_the_first_exchange_of_another_session_is_doubtful(engine: Engine, postgres: Databases) -> None:
    """The server may have undone the last one: which holds also where nobody has seen an error."""
    engine.database.migrate()
    claims = engine.claims()

    def exchange() -> bool:
        return claims.settle_and_claim("w1", [], JobSelector(("tag",)), 1, 60.0, time.time()).doubtful

    assert [exchange(), exchange()] == [False, False]
    postgres.kill_backends(engine.url)
    claims.limits([1])
    assert [exchange(), exchange()] == [True, False]
    claims.close()


def test_an_index_that_was_dropped_is_named(desk: Desk, foreign: psycopg.Connection) -> None:
    """The tables are there, and migrating would not help."""
    desk.put()
    foreign.execute("DROP INDEX jobs_pending")
    with pytest.raises(StoreError, match=r"jobs_pending.*an index of the job tables was dropped") as raised:
        desk.claim()
    assert "migrate" not in str(raised.value)
