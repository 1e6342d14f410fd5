"""Numbered migrations, and scripts split into statements."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.domain.errors import StoreOutdated
from supervisor.store.migrate import Migration, flags_of, known, plan_of, shipped, statements
from supervisor.store.sql.connection import Queries


def package(folder: Path, *names: str) -> Path:
    (folder / "schema.sql").write_text("-- the schema\n")
    (folder / "migrations").mkdir()
    for name in names:
        (folder / "migrations" / name).write_text(f"-- {name}\n", encoding="utf-8")
    return folder


def test_the_schema_comes_first_and_migrations_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    found = plan_of(package(tmp_path, "0003_b.sql", "0002_a.sql", "README", "notes.sql"))

    assert [(m.version, m.name) for m in found] == [(1, "schema.sql"), (2, "0002_a.sql"), (3, "0003_b.sql")]


@pytest.mark.parametrize("names", [("0003_b.sql",), ("0002_a.sql", "0004_c.sql"), ("0002_a.sql", "0002_b.sql")])
def test_numbers_with_gaps_or_twice_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="numbered one by one"):
        plan_of(package(tmp_path, *names))


@pytest.mark.parametrize(
    ("scripts", "oldest"),
    [
        (["", "ALTER TABLE a ADD b;", ""], "1"),
        (["", "-- A column is gone.\n-- contracts: b\nALTER TABLE a DROP b;", ""], "2"),
        (["", "-- What -- contracts: means stands elsewhere."], "1"),
    ],
)
def test_only_a_migration_that_contracts_shuts_out_programs_that_do_not_know_it(
    scripts: list[str], oldest: str
) -> None:
    plan = [Migration(number, f"{number:04}_x.sql", sql) for number, sql in enumerate(scripts, 1)]

    assert flags_of(plan) == {"schema": str(len(plan)), "oldest_writer": oldest}


def test_tables_without_a_version_are_from_before_the_first_release() -> None:
    def look(flags: dict[str, str]) -> int:
        rows = {"t": [("jobs",), ("job_meta",), ("job_limits",)], "f": list(flags.items())}
        queries = Queries({"tables": "t", "flags": "f"})
        return known(rows.__getitem__, queries, "app.db", [Migration(1, "schema.sql", "")], "").version

    assert look({"schema": "3"}) == 3
    with pytest.raises(StoreOutdated, match=r"app\.db: its job tables are from before the first release.*move them"):
        look({"schema_version": "11", "oldest_writer": "10"})


def test_ours_can_be_read_to_the_end() -> None:
    for migration in shipped("supervisor.store.sqlite"):
        assert list(statements(migration.sql))


def test_a_triggers_inner_semicolons_do_not_end_it() -> None:
    trigger = "CREATE TRIGGER t AFTER INSERT ON a BEGIN\n  SELECT 1;\n  SELECT 2;\nEND;\n"

    assert list(statements("CREATE TABLE a (x);\n" + trigger)) == ["CREATE TABLE a (x);\n", trigger]


def test_a_script_that_ends_in_a_statement_is_refused() -> None:
    with pytest.raises(ValueError, match="middle of a statement"):
        list(statements("CREATE TABLE a (x);\nCREATE TABLE"))


def test_a_comment_at_the_end_is_no_statement() -> None:
    assert len(list(statements("SELECT 1;\n\n-- the end\n"))) == 1
