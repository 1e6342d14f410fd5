"""The tables of the documents say what the code says: commands, keys, columns, states, options, tests."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import shlex
import sqlite3
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel

import handlers.examples
from handlers import options
from supervisor import Context, Queue, Status
from supervisor.cli import errors
from supervisor.cli.program import COMMANDS, app
from supervisor.config import settings
from supervisor.config.checks import Keys
from supervisor.domain import enqueueing
from supervisor.engine import open_engine
from supervisor.store.failing import CODES
from supervisor.store.postgres.failing import ENDS, STATES
from supervisor.system import failpoints
from tests.docs.markdown import DOCUMENTS, ROOT, blocks, named, prose, spans, table

COMMON = {"--config", "-c", "--database", "--json", "--yes", "-y", "--help", "-h"}


# The command line


@functools.cache
def commands() -> dict[str, Any]:
    """Every command by its full name: `status`, `jobs list`."""
    found: dict[str, Any] = {}
    root: Any = app
    for name in COMMANDS:
        command = root.get_command(None, name)
        inner = getattr(command, "commands", None)
        found.update({f"{name} {sub}": below for sub, below in inner.items()} if inner else {name: command})
    return found


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


def test_every_command_and_every_option_is_listed() -> None:
    listed = {}
    for row in table("docs/cli.md", "commands"):
        found = resolve(spans(row[0])[0].split()[1:])
        assert found is not None
        text = " ".join(row)
        listed[found[0]] = set(re.findall(r"(?<!\w)--[a-z-]+", text))
    assert set(listed) == set(commands())
    for name, command in commands().items():
        assert listed[name] - COMMON == {o for o in options_of(command) - COMMON if o.startswith("--")}, name


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


# The configuration

CONFIGURATION = "docs/configuration.md"
KEYS: dict[str, Keys] = {
    name: keys
    for where, keys in settings.HOMES.items()
    if (name := re.split(r"\W", where.strip("["))[0]) not in ("the", "defaults", "types", "warmup")
}


def test_every_key_of_the_configuration_is_listed() -> None:
    file = {name.strip("[]").removesuffix(".NAME") for name in named(table(CONFIGURATION, "keys: file"))}
    assert file == set(settings.TOP)
    for mark, keys in (KEYS | {"types": settings.TYPE}).items():
        assert set(named(table(CONFIGURATION, f"keys: {mark}"))) == set(keys), mark


def test_every_table_is_named_where_uninstalling_is_told(schema: Path) -> None:
    sql = "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"
    tables = asked(schema, sql)
    text = (ROOT / "docs/deploying/uninstall.md").read_text(encoding="utf-8")
    assert [name for name in tables if f"`{name}`" not in text] == []


@pytest.mark.parametrize(("mark", "keys"), KEYS.items())
def test_the_defaults_listed_are_the_defaults(mark: str, keys: Keys) -> None:
    for cell, default, *_ in table(CONFIGURATION, f"keys: {mark}"):
        [key] = spans(cell)
        check = keys[key].check
        if spans(default):
            value = tomllib.loads(f"x = {spans(default)[0]}")["x"]
            assert (check(value) if callable(check) else value) == keys[key].default, key
        elif default == "none":
            assert keys[key].default is None, key
        else:
            assert default in ("required", "the pool's name", "see below"), key


def test_the_default_database_is_the_one_listed() -> None:
    [row] = [row for row in table(CONFIGURATION, "keys: file") if row[0] == "`database`"]
    assert tomllib.loads(f"x = {spans(row[1])[0]}")["x"] == settings.ALONE["database"].default


OPTIONS = sorted(
    name
    for name, found in vars(options).items()
    if name.endswith("Options") and isinstance(found, type) and issubclass(found, BaseModel)
)


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "PicturesOptions"])  # that has only tables
def test_the_options_of_the_shipped_handlers_are_listed_with_their_defaults(name: str) -> None:
    model: type[BaseModel] = getattr(options, name)
    of_pictures = name != "PictureOptions" and issubclass(model, options.PictureOptions)
    shared = set(options.PictureOptions.model_fields) if of_pictures else set()
    rows = table("docs/handlers.md", f"options: {name}")
    assert set(named(rows)) == set(model.model_fields) - shared
    for cell, default, _ in rows:
        field = model.model_fields[spans(cell)[0]]
        listed = tomllib.loads(f"x = {spans(default)[0]}")["x"] if spans(default) else None
        assert listed == field.get_default(call_default_factory=True), cell


# The tables in the database


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("schema") / "jobs.db"
    open_engine(f"sqlite:///{path}").database.migrate()
    return path


def asked(path: Path, sql: str) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute(sql)]


def test_every_table_and_column_is_described(schema: Path) -> None:
    tables = asked(schema, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    assert tables
    for name in tables:
        columns = asked(schema, f"SELECT name FROM pragma_table_info('{name}')")
        assert named(table("docs/internals/schema.md", f"columns: {name}")) == columns


@pytest.mark.parametrize(("mark", "kind"), [("indexes", "index"), ("triggers", "trigger")])
def test_every_index_and_trigger_is_described(schema: Path, mark: str, kind: str) -> None:
    made = asked(schema, f"SELECT name FROM sqlite_schema WHERE type = '{kind}' AND name NOT LIKE 'sqlite_%'")
    assert named(table("docs/internals/schema.md", mark)) == made


def test_the_columns_that_programs_may_set_are_the_same_on_both_pages() -> None:
    told = prose(ROOT / "docs/internals/schema.md").partition("should set only")[2].partition(".")[0]
    assert set(named(table("docs/enqueueing.md", "columns: INSERT"))) == set(spans(told))


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


def test_every_move_drawn_is_listed_and_every_move_listed_is_drawn() -> None:
    text = (ROOT / "docs/states.md").read_text(encoding="utf-8").partition("## Every move")[2].partition("\n## ")[0]
    states = "|".join(status.value for status in Status)
    listed = {
        (start, end)
        for before, after in re.findall(r"^\|([^|]*)\|([^|]*)\|.*$", text, re.M)
        for start in re.findall(rf"\b(?:{states})\b", before)
        for end in re.findall(rf"\b(?:{states})\b", after)
    }
    assert listed == {edge for edge in edges() if "[*]" not in edge}


def test_every_example_handler_is_listed() -> None:
    assert isinstance(handlers.examples, ModuleType)
    functions = [
        name
        for name, value in vars(handlers.examples).items()
        if inspect.isfunction(value) and value.__module__ == "handlers.examples" and not name.startswith("_")
    ]
    listed = named(table("docs/handlers.md", "examples"))
    assert [name.removeprefix("handlers.examples:") for name in listed] == functions


def test_the_context_described_is_the_context() -> None:
    text = prose(ROOT / "docs/writing-handlers.md")
    shown = set(re.findall(r"`ctx\.(\w+)", text))
    inner = {"children", "close", "emitted", "reported"}  # for tests and the worker
    of_batches = {"jobs"}
    assert shown - of_batches == {name for name in dir(Context) if not name.startswith("_")} - inner


def test_every_failpoint_of_our_own_code_is_listed() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "supervisor").rglob("*.py"))
    reached = {
        re.sub(r"{_kind_of\(.*", "MESSAGE", place)
        for place in re.findall(r'reach\(f?"([^"]+)"', sources)
        if not place.startswith(("{name}", "{place}", "{one}", "adopt"))  # of statements
    }
    roles = ("maintainer", "admin", "template", "worker", "program")
    assert {place.replace("{role}", role) for place in reached for role in roles} == set(
        named(table("CONTRIBUTING.md", "failpoints"))
    )
    messages = set(named(table("CONTRIBUTING.md", "messages")))
    made = set(re.findall(r"""\{\s*"(\w+)":""", sources))
    sent = set(re.findall(r"""send\(\s*\{\s*"(\w+)":""", sources)) - {"type"}  # to a browser
    assert sent <= messages <= made
    kinds = {word.removeprefix("fail:") for word in named(table("CONTRIBUTING.md", "failpoint actions"))}
    assert kinds == {*failpoints.SIGNALS, *CODES, *STATES, *ENDS, "EAGAIN", "EPIPE"}
