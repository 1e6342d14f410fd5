"""The proxy of the tests loses what it is told to lose, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.postgres_proxy import Proxy
from tests.postgres_server import Databases
from tests.site_under_test import wait_for

INSERT = "INSERT INTO jobs VALUES (%s)"


@pytest.fixture
def direct(postgres: Databases) -> str:
    url = postgres.fresh_database()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE jobs (id int)")
    return url


@pytest.fixture
def proxy(direct: str) -> Iterator[Proxy]:
    with Proxy(direct) as proxy:
        yield proxy


@pytest.fixture
def connect(proxy: Proxy, direct: str) -> Iterator[Callable[[], psycopg.Connection]]:
    made: list[psycopg.Connection] = []

    def make() -> psycopg.Connection:
        made.append(psycopg.connect(proxy.url(direct)))
        return made[-1]

    yield make
    for connection in made:
        connection.close()


def rows(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return [number for (number,) in connection.execute("SELECT id FROM jobs ORDER BY id")]


@pytest.mark.parametrize("answered", [True, False])
def test_a_commit_is_lost_or_its_answer(
    proxy: Proxy, direct: str, connect: Callable[[], psycopg.Connection], answered: bool
) -> None:
    connection, other = connect(), connect()
    proxy.cut_at("^commit", answered=answered, nth=2)
    for number in (1, 2):
        connection.execute(INSERT, [number])
        if number == 1:
            connection.commit()
    with pytest.raises(psycopg.OperationalError):
        connection.commit()
    assert proxy.hits() == 1
    assert rows(direct) == ([1, 2] if answered else [1])
    other.execute(INSERT, [3])
    other.commit()  # it was the second one alone
    assert rows(direct)[-1] == 3


def test_executions_of_prepared_statements_count(
    proxy: Proxy, direct: str, connect: Callable[[], psycopg.Connection]
) -> None:
    connection = connect()
    connection.autocommit = True
    for number in (1, 2):
        connection.execute(INSERT, [number], prepare=True)
    proxy.cut_at("^insert", answered=True, nth=3)
    for number in (3, 4):
        connection.execute(INSERT, [number], prepare=True)
    with pytest.raises(psycopg.OperationalError):
        connection.execute(INSERT, [5], prepare=True)
    assert rows(direct) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("arrives", [True, False])
def test_a_black_hole_swallows_one_direction(
    proxy: Proxy, direct: str, connect: Callable[[], psycopg.Connection], arrives: bool
) -> None:
    connection = connect()
    connection.autocommit = True
    proxy.black_hole(to_server=not arrives, to_client=arrives)
    with ThreadPoolExecutor(1) as thread:
        insert = thread.submit(connection.execute, INSERT, [1])
        if arrives:
            wait_for(lambda: rows(direct) == [1])
        assert not insert.done()
        assert rows(direct) == ([1] if arrives else [])
        proxy.heal()
        insert.result()
    assert rows(direct) == [1]
