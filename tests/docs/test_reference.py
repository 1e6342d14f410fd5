"""The tables of the documents say what the code says: commands, keys, columns, states, options, tests."""

from __future__ import annotations

import contextlib
import inspect
import re
import shlex
import sqlite3
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import handlers.examples
from docs.tables import commands
from supervisor import Context, Queue, Status
from supervisor.cli import errors
from supervisor.domain import enqueueing
from supervisor.engine import open_engine
from supervisor.store.moving import TABLES
from tests.docs.markdown import DOCUMENTS, ROOT, blocks, named, prose, spans, table

# The command line


def options_of(command: Any) -> set[str]:
    return {
        name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("-")
    } | {"--help", "-h"}


def resolve(words: list[str]) -> tuple[str, list[str]] | None:
    """(command, the words after it) of what follows `supervisor`; None for no command, like `--version`."""
    words = [word for word in words if word]
    if not words or words[0].startswith("-"):
        return None
    known = commands()
    for length in (2, 1):
        if " ".join(words[:length]) in known:
            return " ".join(words[:length]), words[length:]
    raise AssertionError(f"there is no command `supervisor {' '.join(words)}`")


def mentioned() -> list[tuple[str, str]]:
    """(where, what follows `supervisor`) of every command line in the documents."""
    found = []
    for document in DOCUMENTS:
        name = str(document.relative_to(ROOT))
        for span in spans(prose(document)):
            if span.startswith("supervisor ") and "=" not in span.partition(" ")[2][:2]:
                found.append((name, span.removeprefix("supervisor ")))
        for block in blocks("sh", document=document):
            joined = block.text.replace("\\\n", " ")
            found += [
                (str(block), call)
                for call in re.findall(r"(?:^|[ /])supervisor ((?:[a-z]+|--version)(?: [^|#\n]*)?)", joined, re.M)
            ]
    return found


@pytest.mark.parametrize(("where", "call"), mentioned())
def test_every_command_line_shown_exists(where: str, call: str) -> None:
    call = call.split("…")[0]
    try:
        words = shlex.split(call)
    except ValueError:
        words = call.split()
    found = resolve(words)
    if found is not None:
        name, rest = found
        for word in rest:
            if word.startswith("--"):
                assert word.partition("=")[0] in options_of(commands()[name]), f"{where}: supervisor {call}"


def test_the_options_said_to_be_common_are() -> None:
    for name, command in commands().items():
        has = options_of(command)
        assert ("--json" in has) == (name not in ("run", "top")), name
        if name not in ("init", "move"):
            assert {"--config", "-c", "--database"} <= has, name


def test_the_exit_codes_are_listed() -> None:
    text = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.M)}
    assert codes == {0, errors.FAILED, errors.USAGE, errors.DATABASE, errors.CONFLICT, errors.INTERRUPTED}


def test_the_make_targets_shown_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    for document in DOCUMENTS:
        shown = [
            *spans(prose(document)),
            *(line for b in blocks("sh", document=document) for line in b.text.split("\n")),
        ]
        for line in shown:
            if line.startswith("make "):
                assert {word for word in line.split()[1:] if "=" not in word} <= targets, line


def test_every_table_is_named_where_uninstalling_is_told(schema: Path) -> None:
    sql = "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"
    tables = {*asked(schema, sql), *TABLES}
    text = (ROOT / "docs/deploying/install.md").read_text(encoding="utf-8")
    assert [name for name in tables if f"`{name}`" not in text] == []


# The tables in the database


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("schema") / "jobs.db"
    open_engine(f"sqlite:///{path}").database.migrate()
    return path


def asked(path: Path, sql: str) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute(sql)]


SCHEMA = "docs/internals/schema.md"


def test_every_table_is_described_and_of_those_that_people_read_every_column(schema: Path) -> None:
    tables = asked(schema, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    page = (ROOT / SCHEMA).read_text(encoding="utf-8")
    marked = set(re.findall(r"^<!-- columns: (\w+) -->$", page, re.M))
    assert marked == {"jobs", "job_errors", "job_runs", "job_history"}
    assert [name for name in tables if f"`{name}`" not in page and name not in marked] == []
    for name in marked:
        columns = asked(schema, f"SELECT name FROM pragma_table_info('{name}')")
        assert sorted(named(table(SCHEMA, f"columns: {name}"))) == sorted(columns)


def test_every_index_of_jobs_is_partial_as_the_page_says(schema: Path) -> None:
    assert asked(schema, "SELECT name FROM pragma_index_list('jobs') WHERE NOT partial") == []
    assert asked(schema, "SELECT name FROM pragma_index_list('jobs') WHERE partial")


def test_the_columns_that_programs_may_set_are_the_same_on_both_pages() -> None:
    [first, *_] = table(SCHEMA, "columns: jobs")
    assert set(named(table("docs/enqueueing.md", "columns: INSERT"))) == set(spans(first[0]))


# Enqueueing, states, handlers, tests


def test_every_option_of_enqueue_is_described() -> None:
    parameters = {*inspect.signature(Queue.enqueue).parameters, *enqueueing.OPTIONS}
    described = set(named(table("docs/enqueueing.md", "options: enqueue")))
    assert described == parameters - {"self", "type", "payload", "options"}


def edges() -> set[tuple[str, str]]:
    [diagram] = [b for b in blocks("mermaid") if b.text.startswith("stateDiagram")]
    return set(re.findall(r"^ +(\S+) --> (\S+):", diagram.text, re.M))


def test_the_drawn_states_are_the_states() -> None:
    drawn = {state for edge in edges() for state in edge} - {"[*]"}
    assert drawn == {status.value for status in Status}
    assert {end for start, end in edges() if start == "[*]"} == {"pending", "held"}
    assert {start for start, end in edges() if end == "[*]"} == {s.value for s in Status if s.finished}


def test_every_end_of_a_run_that_is_drawn_is_listed() -> None:
    drawn = {end for start, end in edges() if start == "running"}
    assert {end for _, end, *_ in table("docs/runs.md", "ends of a run")} == drawn


def test_every_example_handler_is_listed() -> None:
    assert isinstance(handlers.examples, ModuleType)
    functions = [
        name
        for name, value in vars(handlers.examples).items()
        if inspect.isfunction(value) and value.__module__ == "handlers.examples" and not name.startswith("_")
    ]
    text = (ROOT / "docs/handlers.md").read_text(encoding="utf-8").partition("## Examples")[2]
    assert [name for name in spans(text) if name in functions] == functions


def test_the_context_described_is_the_context() -> None:
    text = prose(ROOT / "docs/writing-handlers.md")
    shown = set(re.findall(r"`ctx\.(\w+)", text))
    inner = {"children", "close", "emitted", "reported"}  # for tests and the worker
    of_batches = {"jobs"}
    assert shown - of_batches == {name for name in dir(Context) if not name.startswith("_")} - inner
