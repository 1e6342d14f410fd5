"""What is proposed for an application's table: decisions from its columns, its words and the options."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing

import pytest

from supervisor.domain.errors import InvalidOption, StoreError
from supervisor.store.base import AdoptOptions
from supervisor.store.sqlite.adopt.plan import Plan, propose

BASE = "id INTEGER PRIMARY KEY, type TEXT, payload TEXT, status TEXT"


def plan(columns: str, *rows: str, **options: Mapping[str, str]) -> Plan:
    """For a table with these columns and rows."""
    with closing(sqlite3.connect(":memory:")) as raw:
        raw.execute(f"CREATE TABLE jobs ({columns})")
        for row in rows:
            raw.execute(f"INSERT INTO jobs {row}")
        return propose(raw, AdoptOptions(**options), "jobs")  # type: ignore[arg-type]


def proposed(columns: str, renames: Mapping[str, str] | None = None, *rows: str) -> dict[str, tuple[str, str | None]]:
    parts = plan(columns, *rows, renames=renames or {}).parts
    return {part.old: (part.name, part.meaning or None) for part in parts}


def words(found: list[str], status: Mapping[str, str] | None = None, more: str = "") -> Plan:
    rows = [f"(type, status) VALUES ('tag', '{word}')" for word in found]
    columns = f"id INTEGER PRIMARY KEY, type TEXT, payload TEXT, status TEXT {more}"
    return plan(columns, *rows, statuses=status or {})


@pytest.mark.parametrize(
    ("columns", "renames", "expected"),
    [
        ("owner TEXT", {}, {"owner": ("owner", None)}),
        ("attempts INTEGER", {}, {"attempts": ("attempts", "attempts")}),
        ("run_at TEXT", {}, {"run_at": ("run_at", "scheduled_at")}),
        ("run_at TEXT", {"run_at": "run_at"}, {"run_at": ("run_at", None)}),
        ("run_at TEXT, not_before TEXT", {}, {"run_at": ("run_at", None), "not_before": ("not_before", None)}),
        ("run_at TEXT, scheduled_at REAL", {}, {"run_at": ("run_at", None)}),
        ("priority TEXT", {"priority": "importance"}, {"priority": ("importance", None)}),
        ("result TEXT", {"result": "last_error"}, {"result": ("old_result", "last_error")}),
        ("locked_by TEXT", {}, {"locked_by": ("old_locked_by", None)}),
        ("Locked_By TEXT", {"locked_by": "worker"}, {"Locked_By": ("worker", None)}),
        ("data TEXT", {"payload": "old", "data": "payload"}, {"payload": ("old", None), "data": ("data", "payload")}),
    ],
)
def test_each_column_gets_a_place_and_perhaps_a_meaning(
    columns: str, renames: dict[str, str], expected: dict[str, tuple[str, str | None]]
) -> None:
    found = proposed(f"{BASE}, {columns}", renames)
    assert {name: found[name] for name in expected} == expected


def test_a_time_that_is_written_as_text_keeps_its_original() -> None:
    written = "(type, status, scheduled_at) VALUES ('t', 'done', '2024-05-01')"
    for columns, rows in ((f"{BASE}, scheduled_at TEXT", ()), (f"{BASE}, scheduled_at", (written,))):
        assert proposed(columns, None, *rows)["scheduled_at"] == ("old_scheduled_at", "scheduled_at")
    assert proposed(f"{BASE}, scheduled_at REAL")["scheduled_at"] == ("scheduled_at", "scheduled_at")


def test_ids_that_are_no_integers_stay_beside_a_new_id() -> None:
    columns = BASE.replace("id INTEGER", "id TEXT")
    assert proposed(columns)["id"] == ("old_id", "id")
    assert proposed(columns, {"id": "uuid"})["id"] == ("uuid", "id")
    assert proposed(BASE.replace("id INTEGER", "key TEXT"))["key"] == ("key", "id")


@pytest.mark.parametrize("columns", ["result TEXT, old_result TEXT", "locked_by TEXT, old_locked_by TEXT"])
def test_two_columns_that_would_have_one_name_are_refused(columns: str) -> None:
    with pytest.raises(StoreError, match="two of its columns would be `old_"):
        proposed(f"{BASE}, {columns}", {"result": "last_error"} if "result" in columns else {})


@pytest.mark.parametrize(
    ("renames", "problem"),
    [
        ({"ownr": "x"}, "did you mean owner?"),
        ({"owner": "status"}, "rename that one, too"),
        ({"owner": "x", "other": "x"}, "becomes `x` already"),
        ({"owner": "id"}, "the table has a column `id` already"),
        ({"owner": "locked_by"}, "holds the claims"),
        ({"id": "result"}, "`id` is the primary key"),
    ],
)
def test_a_rename_that_does_not_fit_is_refused(renames: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidOption, match=problem.replace("?", r"\?")):
        proposed(f"{BASE}, owner TEXT, other TEXT", renames)


def test_only_the_key_can_be_the_id() -> None:
    with pytest.raises(InvalidOption, match="`key` is the primary key, and only that can be the id"):
        proposed(f"{BASE.replace('id INTEGER', 'key INTEGER')}, owner TEXT", {"owner": "id"})


def test_a_table_without_a_payload_is_refused_with_the_option_that_names_one() -> None:
    with pytest.raises(StoreError, match="--rename OTHER=payload"):
        proposed("id INTEGER PRIMARY KEY, type TEXT, status TEXT, content TEXT")
    with pytest.raises(StoreError, match="--rename data=payload"):
        proposed("id INTEGER PRIMARY KEY, type TEXT, status TEXT, data TEXT, args TEXT")


def test_usual_words_are_understood_in_any_case() -> None:
    found = words(["QUEUED", "QUEUED", "QUEUED", "In Progress", "In Progress", "completed", "dead", "failed"])
    assert found.statuses == {
        "QUEUED": "pending", "In Progress": "running", "completed": "done", "dead": "failed", "failed": "failed",
    }  # fmt: skip
    assert found.shown == {"pending": "QUEUED", "running": "In Progress", "done": "completed"}
    assert (found.counts.total(), found.counts["pending"]) == (8, 3)


def test_words_that_stand_in_no_row_come_from_the_definition_and_the_options() -> None:
    found = words([], {"paused": "cancelled"}, "DEFAULT 'queued' CHECK (status IN ('queued', 'active'))")
    assert found.statuses == {"queued": "pending", "paused": "cancelled", "active": "running"}


def test_an_option_wins_over_the_proposal() -> None:
    assert words(["new"], {"new": "cancelled"}).statuses == {"new": "cancelled"}


def test_a_word_that_nobody_knows_is_a_reason() -> None:
    with pytest.raises(StoreError, match=r"'odd' \(2 rows\); say what .* with --status odd=pending; .*NULL \(1 row\)"):
        plan(BASE, *["(type, status) VALUES ('t', 'odd')"] * 2, "(type) VALUES ('t')")


@pytest.mark.parametrize(
    ("statuses", "problem"),
    [({"a": "finished"}, "finished is not one of"), ({"done": "failed"}, "writes `done` itself")],
)
def test_a_state_that_does_not_fit_is_refused(statuses: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidOption, match=problem):
        plan(BASE, statuses=statuses)


def test_a_definition_of_any_layout_is_read() -> None:
    found = plan(
        """"id" INTEGER PRIMARY KEY, type VARCHAR(50) NOT NULL, payload TEXT, -- a comment, (with "both"
        [odd, `name`] TEXT DEFAULT ('a,b''c'), `status` TEXT DEFAULT 'done' /* (, */, CHECK (status <> 'x,y)'),
        CONSTRAINT one UNIQUE (type, payload)"""
    )
    assert [column.name for column in found.table.columns] == ["id", "type", "payload", "odd, `name`", "status"]
    assert [item.text for item in found.table.constraints] == [
        "CHECK (status <> 'x,y)')", "CONSTRAINT one UNIQUE (type, payload)",
    ]  # fmt: skip
    assert found.table.columns[3].item.literals == ("a,b'c",)
