"""Named SQL: statements by their names, without comments."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from supervisor.store.sql.connection import Queries, load, of_engine


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "some_queries"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "some_queries", raising=False)
    return folder


def loaded(package: Path, text: str) -> Queries:
    (package / "queries.sql").write_text(text, encoding="utf-8")
    return load("some_queries")


def test_statements_are_attributes_without_comments_and_semicolons(package: Path) -> None:
    queries = loaded(
        package, "-- A file.\n\n-- name: one\n-- Why.\nSELECT 1\n  -- and how\n  FROM t;\n\n-- name: two\nSELECT 2;\n"
    )

    assert queries.one == "SELECT 1\n  FROM t"
    assert queries.two == "SELECT 2"


def test_an_unknown_name_is_an_attribute_error(package: Path) -> None:
    with pytest.raises(AttributeError, match="no statement is named 'three'"):
        loaded(package, "-- name: one\nSELECT 1;").three  # noqa: B018


def test_two_statements_of_one_name_are_refused(package: Path) -> None:
    with pytest.raises(ValueError, match="share a name"):
        loaded(package, "-- name: one\nSELECT 1;\n-- name: one\nSELECT 2;")


STORE = Path(__file__).parents[2] / "supervisor" / "store"
ENGINES = ["sqlite", "postgres"]


@pytest.mark.parametrize(
    ("engine", "filename"),
    [("sql", "queries.sql"), ("sqlite", "queries.sql"), ("sqlite", "adopt/adopt.sql"), ("postgres", "queries.sql")],
)
def test_every_shipped_statement_is_used(engine: str, filename: str) -> None:
    queries = load(f"supervisor.store.{engine}", filename)
    more = (STORE, STORE / "sqlite") if engine == "sql" else ()
    folders = ((STORE / engine / filename).parent, STORE / "sql", *more)
    code = "\n".join(path.read_text(encoding="utf-8") for folder in folders for path in folder.glob("*.py"))

    forms = ".{}", '"{}"'
    unused = [name for name in queries.statements if not any(form.format(name) in code for form in forms)]
    assert unused == []


@pytest.mark.parametrize("engine", ENGINES)
def test_every_statement_that_the_code_names_is_shipped(engine: str) -> None:
    queries = of_engine(f"supervisor.store.{engine}")
    named = {
        name
        for folder in (STORE / engine, STORE / "sql")
        for path in folder.rglob("*.py")
        for name in re.findall(r"\b(?:QUERIES|queries)\.([a-z_]+)", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 30
    assert named - {"statements", "sql"} <= set(queries.statements)
