"""Who keeps others from writing, asked of the kernel without taking a lock."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from supervisor.store.base import Engine
from tests.store.kit import python, until

HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in sys.argv[2:]:
    connection.execute(statement)
print("there", flush=True)
sys.stdin.readline()
"""
Hold = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def hold(engine: Engine) -> Iterator[Hold]:
    started: list[subprocess.Popen[str]] = []

    def start(*statements: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            python("-c", HOLDER, engine.url.removeprefix("sqlite:///"), *statements),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "statements",
    [
        ("BEGIN IMMEDIATE",),
        ("BEGIN EXCLUSIVE",),
        ("BEGIN", "CREATE TABLE own (x)"),
        ("PRAGMA locking_mode = EXCLUSIVE", "CREATE TABLE own (x)"),
        ("CREATE TABLE own (x)", "PRAGMA locking_mode = EXCLUSIVE", "INSERT INTO own VALUES (1)"),
    ],
)
def test_whoever_keeps_others_from_writing_is_known(engine: Engine, hold: Hold, statements: tuple[str, ...]) -> None:
    engine.database.migrate()
    watch = engine.ownership.writers()
    assert watch.database_holder() is None
    process = hold(*statements)
    found = watch.database_holder()
    assert found is not None
    assert found.pid == process.pid
    assert watch.database_holder() == found  # and it is the same transaction
    process.kill()
    process.wait()
    until(lambda: watch.database_holder() is None, 2.0)


def test_whoever_reads_keeps_nobody_from_writing(engine: Engine, hold: Hold) -> None:
    engine.database.migrate()
    hold("BEGIN", "SELECT * FROM jobs")
    assert engine.ownership.writers().database_holder() is None


def test_where_there_is_no_database_nobody_holds_it_and_nothing_is_made(engine: Engine) -> None:
    watch = engine.ownership.writers()
    assert watch.database_holder() is None
    assert watch.holder() is None
    assert not engine.database.folder.exists()
