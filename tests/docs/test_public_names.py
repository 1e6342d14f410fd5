"""The names that users write and read stay: configuration, commands, HTTP, metrics, SQL and Python.

`public_names.txt` lists them. A new name is added by hand; one that goes breaks somebody's script.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import supervisor
from docs.tables import TABLES, commands, document, shown_and_made
from supervisor.config import settings
from supervisor.engine import open_engine
from tests.docs.markdown import ROOT
from tests.docs.test_reference import options_of

LISTED = Path(__file__).with_name("public_names.txt")


def configuration() -> Iterator[str]:
    yield from (f"config {key}" for key in settings.TOP)
    for where, keys in settings.HOMES.items():
        if not where.startswith(("the file", "[defaults")):
            name = re.split(r"\W", where.strip("["))[0].removesuffix("s")
            yield from (f"config {name}.{key}" for key in keys)


def command_line() -> Iterator[str]:
    for name, command in commands().items():
        yield from (f"command {name} {option}" for option in sorted(options_of(command)))
        yield from (f"command {name} <{p.name}>" for p in command.params if p.param_type_name == "argument")


def http() -> Iterator[str]:
    for path, methods in document()["paths"].items():
        for method, what in methods.items():
            yield f"http {method.upper()} {path}"
            yield from (f"http {method.upper()} {path} ?{one['name']}" for one in what.get("parameters", []))
    for model, what in document()["components"]["schemas"].items():
        yield from (f"http {model}.{name}" for name in what.get("properties", {}))


def sql(folder: Path) -> Iterator[str]:
    open_engine(f"sqlite:///{folder}/jobs.db").database.migrate()
    with contextlib.closing(sqlite3.connect(folder / "jobs.db")) as connection:
        kinds = connection.execute("SELECT type, name FROM sqlite_schema WHERE name NOT LIKE 'sqlite%'").fetchall()
        for kind, name in kinds:
            yield f"sql {kind} {name}"
            if kind in ("table", "view"):
                columns = connection.execute("SELECT name FROM pragma_table_xinfo(?)", (name,))
                yield from (f"sql {name}.{column}" for (column,) in columns.fetchall())


def metrics() -> Iterator[str]:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "supervisor/admin").glob("*.py"))
    yield from (f"metric {name}" for name in re.findall(r'"(supervisor_\w+)"', source))


def python() -> Iterator[str]:
    yield from (f"python {name}" for name in supervisor.__all__)


def test_no_name_that_users_know_has_gone(tmp_path: Path) -> None:
    there = {*configuration(), *command_line(), *http(), *metrics(), *sql(tmp_path), *python()}
    listed = set(LISTED.read_text(encoding="utf-8").splitlines())

    assert sorted(listed - there) == []
    assert sorted(there - listed) == [], "add them to public_names.txt"


def test_every_address_of_the_api_says_what_it_does() -> None:
    for path, operations in document()["paths"].items():
        for method, operation in operations.items():
            assert operation["description"], f"{method} {path}"
            assert operation["tags"], f"{method} {path}"
            assert ("security" in operation) == (path != "/healthz"), f"{method} {path}"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table[1])
def test_the_tables_are_those_that_the_code_makes(table: Any) -> None:
    shown, made = shown_and_made(*table)
    assert shown == made, "run make reference"
