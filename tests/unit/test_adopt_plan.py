"""What is proposed for an application's table: pure decisions from its columns, its words and the options."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from supervisor.domain.errors import InvalidOption, StoreError
from supervisor.store.sqlite.adopt.parts import Facts, assign
from supervisor.store.sqlite.adopt.shape import Old, our_definition
from supervisor.store.sqlite.adopt.words import Words, understand
from supervisor.store.sqlite.definition import Column, parse

BASE = "id INTEGER PRIMARY KEY, type TEXT, payload TEXT, status TEXT"
OURS = our_definition()


def table(columns: str, key: str = "id") -> Old:
    definition = parse(f"CREATE TABLE jobs ({columns})")
    return Old("jobs", definition, False, key, frozenset(), (), (), (), (), frozenset())


def proposed(
    columns: str, renames: Mapping[str, str] | None = None, *, key: str = "id", integer: bool = True, written: str = ""
) -> dict[str, tuple[str, str | None]]:
    facts = Facts(integer, frozenset(filter(None, [written])))
    return {part.old: (part.name, part.ours) for part in assign(table(columns, key), OURS, renames or {}, facts)}


def words(found: list[tuple[str | None, int]], status: Mapping[str, str] | None = None, more: str = "") -> Words:
    understood, reasons = understand(found, column(f"status TEXT {more}"), [], status or {}, {})
    assert reasons == []
    return understood


def column(definition: str) -> Column:
    return parse(f"CREATE TABLE jobs ({definition})").columns[0]


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
        ("result TEXT, old_result TEXT", {"result": "last_error"}, {"result": ("old_result_", "last_error")}),
        ("locked_by TEXT, old_locked_by TEXT", {}, {"locked_by": ("old_locked_by_", None)}),
        ("locked_by TEXT, host TEXT", {"host": "old_locked_by"}, {"locked_by": ("old_locked_by_", None)}),
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
    columns = f"{BASE}, scheduled_at TEXT"
    assert proposed(columns, written="scheduled_at")["scheduled_at"] == ("old_scheduled_at", "scheduled_at")
    assert proposed(columns)["scheduled_at"] == ("scheduled_at", "scheduled_at")


def test_ids_that_are_no_integers_stay_beside_a_new_id() -> None:
    columns = BASE.replace("id INTEGER", "id TEXT")
    assert proposed(columns, integer=False)["id"] == ("old_id", "id")
    assert proposed(columns, {"id": "uuid"}, integer=False)["id"] == ("uuid", "id")
    columns = BASE.replace("id INTEGER", "key TEXT")
    assert proposed(columns, key="key", integer=False)["key"] == ("key", "id")


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
        proposed(f"{BASE.replace('id INTEGER', 'key INTEGER')}, owner TEXT", {"owner": "id"}, key="key")


def test_a_table_without_a_payload_is_refused_with_the_option_that_names_one() -> None:
    with pytest.raises(StoreError, match="--rename OTHER=payload"):
        proposed("id INTEGER PRIMARY KEY, type TEXT, status TEXT, content TEXT")
    with pytest.raises(StoreError, match="--rename data=payload"):
        proposed("id INTEGER PRIMARY KEY, type TEXT, status TEXT, data TEXT, args TEXT")


def test_usual_words_are_understood_in_any_case() -> None:
    found = words([("QUEUED", 3), ("In Progress", 2), ("completed", 1), ("dead", 1), ("failed", 1)])
    assert found.statuses == {
        "QUEUED": "pending", "In Progress": "running", "completed": "done", "dead": "failed", "failed": "failed",
    }  # fmt: skip
    assert found.shown_statuses == {"pending": "QUEUED", "running": "In Progress", "done": "completed"}
    assert found.merged() == [("failed", ["dead", "failed"])]


def test_words_that_stand_in_no_row_come_from_the_definition_and_the_options() -> None:
    found = words([], {"paused": "cancelled"}, "DEFAULT 'queued' CHECK (status IN ('queued', 'active'))")
    assert found.statuses == {"queued": "pending", "paused": "cancelled", "active": "running"}


def test_an_option_wins_over_the_proposal() -> None:
    assert words([("new", 1)], {"new": "cancelled"}).statuses == {"new": "cancelled"}


def test_a_word_that_nobody_knows_is_a_reason() -> None:
    _, reasons = understand([("odd", 2), (None, 1)], column("status TEXT"), [], {}, {})
    assert [reason.partition(": ")[2] for reason in reasons] == [
        "NULL (1 row)",
        "'odd' (2 rows); say what it means with --status odd=pending",
    ]


@pytest.mark.parametrize(
    ("statuses", "problem"),
    [({"a": "finished"}, "finished is not one of"), ({"done": "failed"}, "writes `done` itself")],
)
def test_a_state_that_does_not_fit_is_refused(statuses: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidOption, match=problem):
        understand([], column("status TEXT"), [], statuses, {})


def test_a_type_that_is_also_a_new_name_is_not_replaced_for_ever() -> None:
    found = Words({}, {"a": "b", "b": "c"})
    assert found.foreign_types == {"a": "b"}
