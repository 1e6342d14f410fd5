"""The look at the file before the start: it finds damage, and takes nothing else for it."""

from __future__ import annotations

import sqlite3

import pytest

from tests.store.kit import Desk
from tests.store.sqlite.test_fences import insert


def match(pattern: str, text: str) -> bool:
    return True


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE users (email TEXT CHECK (email REGEXP '.+@.+'))", "INSERT INTO users VALUES ('a@b')"],
        ["CREATE TABLE words (word TEXT COLLATE mine)", "CREATE INDEX by_word ON words (word)"],
        [
            "CREATE TABLE app (n INTEGER CHECK (n < 10))",
            "PRAGMA ignore_check_constraints = ON",
            "INSERT INTO app VALUES (99)",
        ],
    ],
)
def test_what_an_application_has_of_its_own_keeps_nobody_from_starting(
    desk: Desk, foreign: sqlite3.Connection, statements: list[str]
) -> None:
    foreign.create_function("regexp", 2, match)
    foreign.create_collation("mine", lambda one, other: (one > other) - (one < other))
    for statement in statements:
        foreign.execute(statement)
    assert desk.engine.database.check_integrity(5.0)


def test_a_row_that_breaks_a_rule_of_the_table_is_no_damage(desk: Desk, foreign: sqlite3.Connection) -> None:
    insert(foreign, priority=101)
    assert desk.engine.database.check_integrity(5.0)


def test_a_supervisor_s_row_that_no_supervisor_has_written_is_a_dead_one_s(
    desk: Desk, foreign: sqlite3.Connection
) -> None:
    foreign.execute(
        "INSERT INTO job_supervisors (id, pid, host, machine_id, boot_id, owner_lock, scoreboard, config, version,"
        " started_at) VALUES ('a' || char(0) || 'b', 1, 'h', 'm', 'b', '/o', '/s', '/c', '0', 1.0)"
    )
    [record] = desk.operations.registry.supervisors()
    assert desk.operations.registry.owner_lives(record) is False
    desk.maintenance.registry.forget(record.id, 0.0)
    assert desk.operations.registry.supervisors() == []


def test_what_somebody_has_dropped_beside_the_tables_is_made_again(desk: Desk, foreign: sqlite3.Connection) -> None:
    parts = "SELECT type, name, sql FROM sqlite_schema WHERE type <> 'table' AND sql IS NOT NULL ORDER BY type, name"
    before = foreign.execute(parts).fetchall()
    for kind, name in [(kind, name) for kind, name, _ in before]:
        foreign.execute(f"DROP {kind} {name}")
    assert desk.engine.database.migrate() == []
    assert foreign.execute(parts).fetchall() == before
    assert desk.one(now=desk.job(desk.put()).scheduled_at).job_id == 1
