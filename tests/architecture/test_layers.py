"""Imports point down, and only one place knows an engine. Read from the source, so nothing is loaded."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import forkserver

ROOT = Path(__file__).parents[2]
PACKAGES = ("supervisor", "handlers")

# What each part may import of the others. Every part may import itself.
ALLOWED: dict[str, set[str]] = {
    "domain": set(),
    "system": set(),  # the edge to Linux: it knows no job and no database
    "telemetry": {"domain"},
    "helper": set(),  # it runs in interpreters that have none of the others
    "config": {"domain"},
    "store": {"domain", "system"},
    "worker": {"config", "domain", "store.base", "system", "tasks", "telemetry"},
    "maintenance": {"domain", "store.base", "system", "telemetry"},
    "template": {"config", "domain", "engine", "store.base", "system", "telemetry", "worker"},
    "supervision": {
        "config",
        "domain",
        "engine",
        "maintenance",
        "store.base",
        "system",
        "telemetry",
        "template",
        "worker",
    },
    "ops": {  # what the command line and the admin process do; it starts no process
        "config",
        "domain",
        "engine",
        "store.base",
        "store.moving",
        "system",
        "telemetry",
        "worker",
    },
    "engine": {"domain", "store.base", "store.moving", "store.postgres", "store.sqlite"},
    "client": {"domain", "engine", "ops", "store.base"},
    "tasks": {"client", "config", "domain", "worker.context"},
}
ENGINES = ("sqlite", "postgres")
BELOW = {*ALLOWED, "store.base", "store.migrate", "store.moving", "worker.context"} - {"store"}
# What is not listed belongs to the application: it may use all of the above and its like, never the command
# line, which is on top.
# The admin process alone carries a web framework: only its child's entry is ever imported, after the fork.
TOP = {"cli": {"__main__"}, "__main__": set[str](), "admin": {"app"}}
# Nothing that a worker's or the supervisor's image need not carry, and nothing that makes a fork unsafe.
HEAVY = {
    "fastapi", "jinja2", "numpy", "onnx", "onnxruntime", "opentelemetry", "prometheus_client", "pydantic", "rich",
    "click", "sentry_sdk", "starlette", "torch", "transformers", "uvicorn",
}  # fmt: skip
SQL = re.compile(
    r"\b(SELECT\s.+\sFROM|INSERT\s+(OR\s+\w+\s+)?INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM"
    r"|CREATE\s+(UNIQUE\s+)?(TABLE|INDEX|TRIGGER|VIEW)|ALTER\s+TABLE|DROP\s+(TABLE|INDEX|TRIGGER))\b",
    re.DOTALL,
)


class Import(NamedTuple):
    module: str
    line: int
    when: str  # "typing" (under TYPE_CHECKING), "use" (inside a function), or "load"


def sources(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports(path: Path) -> tuple[Import, ...]:
    def walk(node: ast.AST, when: str) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                continue  # most of a tree, and no import is in it
            inner = when
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and when == "load":
                inner = "use"
            elif isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
                inner = "typing"
            if isinstance(child, ast.Import):
                yield from (Import(name.name, child.lineno, when) for name in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}:{child.lineno}: imports are absolute"
                assert child.module
                for name in child.names:
                    # `from supervisor.store import base` means the module base, if there is one.
                    whole = f"{child.module}.{name.name}"
                    yield Import(whole if is_module(whole) else child.module, child.lineno, when)
            yield from walk(child, inner)

    return tuple(walk(tree_of(path), "load"))


def is_module(name: str) -> bool:
    place = ROOT.joinpath(*name.split("."))
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def part(module: str) -> str:
    """supervisor.store.sqlite.owner → store.sqlite; supervisor.worker.claim_buffer → worker. The context is a part of
    its own: tasks, which the worker imports, have it in their annotations.
    """
    names = module.split(".")[1:]
    if names == ["worker", "context"]:
        return "worker.context"
    return ".".join(names[:2]) if names[0] == "store" and len(names) > 1 else names[0]


def shown(path: Path, line: int, what: str) -> str:
    return f"{path.relative_to(ROOT)}:{line}: {what}"


def importing(*packages: str, what: Callable[[Path, Import], bool]) -> list[str]:
    """The imports for which that is true."""
    return [
        shown(path, found.line, found.module)
        for path in sources(*packages)
        for found in imports(path)
        if what(path, found)
    ]


def allowed(own: str, other: str) -> bool:
    """Whether a part may import another."""
    if own in ALLOWED:
        return other in ALLOWED[own] or (other == "worker.context" and "worker" in ALLOWED[own])
    if other in TOP:
        return own in TOP[other]
    return other in BELOW or other.split(".")[0] not in ALLOWED


def test_imports_point_down() -> None:
    def up(path: Path, found: Import) -> bool:
        own = path.relative_to(ROOT / "supervisor").with_suffix("").parts[0]
        if own == "__init__" or not found.module.startswith("supervisor."):
            return False
        other = part(found.module)
        return other.split(".")[0] != own and not allowed(own, other)

    assert importing("supervisor", what=up) == []


def test_no_package_has_a_name_that_its_module_of_that_name_could_replace() -> None:
    """Where imports are lazy, as in Python 3.15 on request, the module is imported later, and then is what is found."""
    assert [
        shown(path, node.lineno, alias.name)
        for path in sources(*PACKAGES)
        if path.name == "__init__.py"
        for node in tree_of(path).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if node.module == ".".join([*path.parent.relative_to(ROOT).parts, alias.asname or alias.name])
    ] == []


def test_only_the_engine_module_knows_an_engine() -> None:
    def knows(path: Path, found: Import) -> bool:
        engines = [engine for engine in ENGINES if found.module.startswith(f"supervisor.store.{engine}")]
        return path != ROOT / "supervisor" / "engine.py" and not set(engines) <= set(path.parts)

    assert importing(*PACKAGES, what=knows) == []


def test_handlers_import_only_the_public_api_and_are_never_imported_by_name() -> None:
    def inner(path: Path, found: Import) -> bool:
        return found.module.startswith("supervisor.") and found.when != "typing"

    assert importing("handlers", what=inner) == []
    assert importing("supervisor", what=lambda path, found: found.module.split(".")[0] == "handlers") == []


@pytest.mark.parametrize("package", ["supervision", "template", "worker", "maintenance", "domain", "store", "system"])
def test_what_is_forked_loads_no_heavy_library(package: str) -> None:
    assert sources(f"supervisor/{package}")

    def heavy(path: Path, found: Import) -> bool:
        return found.when == "load" and found.module.split(".")[0] in HEAVY

    assert importing(f"supervisor/{package}", what=heavy) == []


PURE = {("supervisor/domain/schedule.py", "cronsim")}
"""Libraries that only compute, loaded when they are used: no input or output, nothing that a web app pays for."""
DRIVERS = {"postgres": {"psycopg"}}
"""What an engine alone may load, and with it whoever uses that engine."""


def test_the_domain_and_the_store_need_only_the_standard_library() -> None:
    def foreign(path: Path, found: Import) -> bool:
        own = {*sys.stdlib_module_names, "supervisor", *DRIVERS.get(path.parent.name, set())}
        pure = found.when != "load" and (str(path.relative_to(ROOT)), found.module) in PURE
        return found.module.split(".")[0] not in own and not pure

    assert importing("supervisor/domain", "supervisor/store", "supervisor/client", what=foreign) == []


LOOK = """
import sys
before = {name.split('.')[0] for name in sys.modules}
STATEMENT
print(*sorted(
    name for name, module in sys.modules.items()
    if "site-packages" in (getattr(module, "__file__", None) or "") and name.split(".")[0] not in before
))
"""


def loaded_by(statement: str) -> list[str]:
    """What a fresh interpreter has loaded from site-packages after a statement, apart from its own start."""
    command = [sys.executable, "-c", LOOK.replace("STATEMENT", statement)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, cwd=ROOT).stdout.split()


@pytest.mark.parametrize(
    "statement",
    [
        "import supervisor; supervisor.Queue",
        "from supervisor import Queue, Retry, Fail, Job, Status, InvalidJob, StoreError",
        "from supervisor import Queue; Queue('sqlite:////nowhere/jobs.db')",
        "from supervisor import Queue; Queue('sqlite:///FOLDER/jobs.db').enqueue('tag', {'a': 1})",
        "from pathlib import Path; from supervisor.config import load; load(Path('FOLDER/supervisor.toml'))",
    ],
)
def test_whoever_enqueues_or_reads_the_configuration_loads_the_standard_library_alone(
    statement: str, tmp_path: Path
) -> None:
    (tmp_path / "supervisor.toml").write_text('[pools.tag]\nhandler = "jobs:tag"\n', encoding="utf-8")

    assert loaded_by(statement.replace("FOLDER", str(tmp_path))) == []


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["enqueue", "tag", "{}"],
        ["jobs", "list"],
        ["jobs", "retry", "--help"],
        ["jobs", "cancel", "1"],
        ["pause", "tag"],
    ],
)
def test_a_quick_command_loads_click_alone(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "supervisor.toml").write_text('[pools.tag]\nhandler = "jobs:tag"\n', encoding="utf-8")
    forkserver.run(["enqueue", "tag"], cwd=tmp_path)
    run = f"import os; os.chdir({str(tmp_path)!r}); from supervisor.cli import main; main({command!r})"
    loaded = loaded_by(run)

    libraries = {name.partition(".")[0] for name in loaded if re.fullmatch(r"[\w.]+", name)}
    assert not libraries & (HEAVY - {"click"}), loaded


RUNNERS = ("supervisor.worker.runners.batch", "supervisor.worker.runners.concurrent")


def test_only_the_choice_of_a_runner_knows_batches_and_concurrency() -> None:
    """Either can be deleted: the loop, the exchange and the executor do not know which runner there is."""

    def knows(path: Path, found: Import) -> bool:
        own = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        choice = own == "supervisor.worker.runners.__init__"
        return found.module.startswith(RUNNERS) and not choice and not own.startswith(RUNNERS)

    assert importing("supervisor", what=knows) == []


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Every text of a module but its docstrings."""
    tree = tree_of(path)
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            yield node.lineno, node.value


def test_sql_stands_in_sql_files() -> None:
    wrong = [
        shown(path, line, text[:60]) for path in sources("supervisor") for line, text in texts(path) if SQL.search(text)
    ]
    assert wrong == []


LONGER = {"supervisor/helper/job_handler.py": 436}
"""It must be one file, because programs without our PYTHONPATH have a copy of it."""


def test_a_module_can_be_read_in_one_sitting() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in sources(*PACKAGES)
    }
    assert {name: length for name, length in lengths.items() if length > LONGER.get(name, 400)} == {}
