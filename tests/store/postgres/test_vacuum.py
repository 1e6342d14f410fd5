"""VACUUM of our tables: one at a time, in the background, and only when it frees something."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from supervisor.domain import dead_rows
from supervisor.domain.duty import Duty
from supervisor.store.base import Engine
from supervisor.store.postgres import maintenance as vacuum
from supervisor.store.postgres.address import Address
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.maintenance import Vacuum, tables_of
from supervisor.store.queries import Queries
from tests.postgres_server import Databases
from tests.site_under_test import wait_for
from tests.store.kit import NOW, Desk

MANY = 25_000
PATIENCE = 60.0  # seconds, where the machine is busy


class Log:
    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.told.append((event, fields))

    warning = info


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def engine(postgres: Databases, engine: Engine) -> Engine:
    return engine


@pytest.fixture
def make_duty(desk: Desk, engine: Engine, log: Log) -> Iterator[Callable[[], Vacuum]]:
    """One for each host."""
    made: list[Vacuum] = []
    opened: list[Connection] = []

    def make() -> Vacuum:
        address = Address(engine.url)
        opened.append(Connection(address))
        made.append(Vacuum(opened[-1], Connection(address), log))
        return made[-1]

    yield make
    for duty in made:
        duty.close()
    for connection in opened:
        connection.close()


@pytest.fixture
def dirty(desk: Desk, engine: Engine, foreign: psycopg.Connection) -> Callable[[], int]:
    """How many dead rows there are; autovacuum does not come, and at first there are many."""
    foreign.execute("ALTER TABLE jobs SET (autovacuum_enabled = false)")
    foreign.execute("DELETE FROM job_meta WHERE key = 'vacuum'")
    soil(engine.url)
    looking = Connection(Address(engine.url))

    def dead() -> int:
        return next(table.dead for table in tables_of(looking) if table.name == "public.jobs")

    wait_for(lambda: dead() >= MANY, "the statistics", PATIENCE)
    return dead


def soil(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as other:  # its statistics are told when it ends
        other.execute(f"INSERT INTO jobs (type, payload) SELECT 'tag', '{{}}' FROM generate_series(1, {MANY})")
        other.execute("DELETE FROM jobs")


def vacuums(url: str) -> int:
    with psycopg.connect(url) as other:
        row = other.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE application_name = 'job-supervisor vacuum' AND datname = current_database()"
        ).fetchone()
    return row[0] if row else 0


def until_told(duty: Duty, log: Log) -> None:
    def told() -> bool:
        duty.run(NOW)
        return bool(log.told)

    wait_for(told, "its end", PATIENCE)


def test_dead_rows_that_autovacuum_has_left_are_removed_once(
    make_duty: Callable[[], Vacuum], engine: Engine, dirty: Callable[[], int], log: Log, foreign: psycopg.Connection
) -> None:
    duty, elsewhere = make_duty(), make_duty()
    until_told(duty, log)
    assert [(event, fields["table"]) for event, fields in log.told] == [("vacuumed", "public.jobs")]
    wait_for(lambda: dirty() < 100, "the statistics", PATIENCE)
    assert duty.every == vacuum.LOOK
    assert vacuums(engine.url) == 0

    soil(engine.url)
    wait_for(lambda: dirty() >= MANY, "the statistics", PATIENCE)
    for one in (duty, elsewhere):
        one.run(NOW)
        assert one.every == vacuum.LOOK
    assert len(log.told) == 1  # it was made a moment ago
    [(until,)] = foreign.execute(
        "SELECT value::float - extract(epoch FROM now()) FROM job_meta WHERE key = 'vacuum'"
    ).fetchall()
    assert 0 < until <= 300


def test_it_is_made_on_one_host_and_when_its_time_has_come(
    make_duty: Callable[[], Vacuum], engine: Engine, dirty: Callable[[], int], foreign: psycopg.Connection
) -> None:
    duty = make_duty()
    foreign.execute("INSERT INTO job_meta (key, value) VALUES ('vacuum', (extract(epoch FROM now()) + 60)::text)")
    duty.run(NOW)
    assert duty.every == vacuum.LOOK
    foreign.execute("UPDATE job_meta SET value = 'nonsense' WHERE key = 'vacuum'")
    with closing(Connection(Address(engine.url))) as another_host:
        another_host.rows(vacuum.QUERIES.vacuum_lock)
        duty.run(NOW)
        assert duty.every == vacuum.LOOK
    wait_for(lambda: duty.run(NOW) and duty.every < vacuum.LOOK, "its turn", PATIENCE)


def test_there_is_none_while_it_would_free_nothing_but_a_warning_that_names_the_cause(
    make_duty: Callable[[], Vacuum],
    engine: Engine,
    dirty: Callable[[], int],
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    duty = make_duty()
    with psycopg.connect(engine.url, application_name="forgotten") as other, monkeypatch.context() as patched:
        patched.setattr(dead_rows, "OLD", -1.0)  # any session with a snapshot, so only while there is this one
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1")
        for _ in range(3):
            duty.run(NOW)
        assert duty.every == vacuum.LOOK
        [(event, fields)] = log.told
        assert event == "vacuum_in_vain"
        assert fields["kept_by"].startswith(f"pid {other.info.backend_pid}, forgotten")
    log.told.clear()
    wait_for(lambda: duty.run(NOW) and duty.every < vacuum.LOOK, "one to begin", PATIENCE)
    until_told(duty, log)
    assert log.told[0][0] == "vacuumed"


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes long."""
    statements = {**vacuum.QUERIES.statements, "vacuum": "SELECT pg_sleep(600)"}
    monkeypatch.setattr(vacuum, "QUERIES", Queries(statements))


def test_it_holds_up_no_other_duty_and_ends_with_the_maintainer(
    slow: None, make_duty: Callable[[], Vacuum], engine: Engine, dirty: Callable[[], int], log: Log
) -> None:
    duty = make_duty()
    duty.run(NOW)  # returns at once
    wait_for(lambda: vacuums(engine.url) == 1, "it to begin", PATIENCE)
    duty.run(NOW)
    assert log.told == []
    duty.close()
    wait_for(lambda: vacuums(engine.url) == 0, "its end", PATIENCE)


def test_one_that_the_server_has_ended_is_told_and_not_made_again_at_once(
    slow: None, make_duty: Callable[[], Vacuum], engine: Engine, dirty: Callable[[], int], log: Log
) -> None:
    duty = make_duty()
    duty.run(NOW)
    with psycopg.connect(engine.url, autocommit=True) as other:
        other.execute(
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'job-supervisor vacuum' AND datname = current_database()"
        )
    until_told(duty, log)
    [(event, fields)] = log.told
    assert event == "vacuum_failed"
    assert "cancel" in fields["error"]
    duty.run(NOW)
    assert duty.every == vacuum.LOOK


def test_it_can_be_switched_off(desk: Desk) -> None:
    assert "vacuum" not in {duty.name for duty in desk.maintenance.duties(None, vacuum=False)}  # type: ignore[arg-type] - nothing is logged
