"""What differs between the tables on PostgreSQL and those of SQLite is known, and told if people meet it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from supervisor.engine import open_engine
from tests.docs.markdown import ROOT
from tests.postgres_server import Databases

PAGE = ROOT / "docs/internals/schema.md"
COLUMNS = {
    *(f"job_supervisors.{name}" for name in ("lease_until", "node", "posted")),
    "job_runs.number",
    *(f"job_ends.{name}" for name in ("job_id", "started", "batch", "type", "key", "deleted")),
    "job_since_crash.yes",
}
INDEXES = {"jobs_pending", "jobs_running"}
SEQUENCES = {"job_sleepers", "job_watchers", "job_token_floor", "job_limited", "job_timeline"}
TRIGGERS = {
    *("jobs_defend", "jobs_continue", "jobs_hold", "jobs_hold_again", "jobs_other_gates", "jobs_deleted"),
    *("after_begins", "batch_closes", "limits_known", "jobs_announce", "controls_announce", "ends_announce"),
}
TOLD = {"job_ends", "job_since_crash", "job_sleepers", "job_watchers", "job_token_floor", *INDEXES}


@pytest.fixture
def raw(postgres: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection[Any]]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    url = postgres.fresh_database()
    open_engine(url).database.migrate()
    with psycopg.connect(url) as connection:
        yield connection


def asked(raw: psycopg.Connection[Any], sql: LiteralString) -> set[str]:
    return {row[0] for row in raw.execute(sql).fetchall()}


def test_what_postgresql_has_beside_is_known(raw: psycopg.Connection[Any], tmp_path: Path) -> None:
    open_engine(f"sqlite:///{tmp_path}/jobs.db").database.migrate()
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as file:
        ours = (
            "SELECT m.name || '.' || c.name FROM sqlite_schema m, pragma_table_info(m.name) c"
            " WHERE m.type = 'table' AND m.name NOT IN ('sqlite_sequence', 'job_moves')"
        )
        columns = {row[0] for row in file.execute(ours)}
        indexes = {row[0] for row in file.execute("SELECT name FROM sqlite_schema WHERE type = 'index' AND sql <> ''")}
    there = asked(
        raw,
        "SELECT table_name || '.' || column_name FROM information_schema.columns WHERE table_schema = 'public'"
        " AND table_name NOT IN (SELECT viewname FROM pg_views)",
    )
    assert columns - there == set()
    assert there - columns == COLUMNS
    found = asked(
        raw,
        "SELECT c.relname FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid LEFT JOIN pg_constraint o"
        " ON o.conindid = c.oid WHERE c.relnamespace = 'public'::regnamespace AND o.oid IS NULL",
    )
    assert found - indexes == INDEXES
    assert indexes - found == {"job_moves_order", "jobs_unfinished"}
    sequences = asked(
        raw,
        "SELECT c.relname FROM pg_class c LEFT JOIN pg_depend d ON d.objid = c.oid AND d.deptype = 'i'"
        " WHERE c.relkind = 'S' AND d.objid IS NULL",
    )
    assert sequences == SEQUENCES
    assert asked(raw, "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal") == TRIGGERS


def test_the_page_tells_of_what_people_meet() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in TOLD if f"`{name}`" not in page] == []
