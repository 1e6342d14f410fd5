"""What a command does not load: importing takes most of its time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click import Context

from supervisor.cli.program import COMMANDS, app

# Beside what no command of these needs, what only some of ours do.
HEAVY = {
    "asyncio", "email", "fastapi", "hashlib", "http", "importlib.resources", "psutil", "pydantic", "rich",
    "shutil", "socket", "ssl", "structlog", "tempfile", "zoneinfo",
}  # fmt: skip
OVERVIEW = {"supervisor.ops.status", "supervisor.ops.views", "supervisor.ops.why"}
OPERATIONS = {"supervisor.store.sql.statistics", "supervisor.store.sql.stores"}
MAINTENANCE = {"supervisor.store.sqlite.claims", "supervisor.store.sqlite.maintenance"}
ENGINE = {"supervisor.store.base", "supervisor.config", "supervisor.client", "sqlite3"}
OF_COMMANDS = {"supervisor.cli.enqueue", "supervisor.cli.jobs", "supervisor.cli.status", "supervisor.domain.job"}
CLI = "import sys; from supervisor.cli import main; main(sys.argv[1:])"
QUEUE = "from supervisor import Queue; Queue('sqlite:///jobs.db').enqueue('greet', {'name': 'Ada'})"


def run(folder: Path, code: str, *words: str) -> set[str]:
    """The modules that a program has loaded at its end."""
    code += "; import sys; print(*sys.modules, file=sys.stderr)"
    command = [sys.executable, "-c", code, *words]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    return set(ran.stderr.splitlines()[-1].split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("imports")
    for words in (["init"], ["enqueue", "greet", "{}"]):
        run(made, CLI, *words)
    return made


@pytest.mark.parametrize(
    ("words", "unneeded"),
    [
        (["--help"], (HEAVY - {"shutil"}) | OVERVIEW | OPERATIONS | MAINTENANCE | ENGINE | OF_COMMANDS),
        (["enqueue", "greet", "{}"], HEAVY | OVERVIEW | OPERATIONS | MAINTENANCE | {"pkgutil"}),
        (["status"], HEAVY | MAINTENANCE | {"textwrap"}),
        (["jobs", "list"], HEAVY | MAINTENANCE),
        (["jobs", "why", "1"], HEAVY | MAINTENANCE),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_a_command_loads_nothing_heavy_without_need(folder: Path, words: list[str], unneeded: set[str]) -> None:
    assert run(folder, CLI, *words) & unneeded == set()


def test_the_list_of_commands_says_what_each_of_them_says() -> None:
    said = {name: app.get_command(Context(app), name).get_short_help_str(200) for name in COMMANDS}
    assert said == {name: text for name, (_, text) in COMMANDS.items()}


def test_a_program_that_enqueues_loads_nothing_heavy(folder: Path) -> None:
    unneeded = HEAVY | OVERVIEW | OPERATIONS | MAINTENANCE | {"click", "pkgutil", "supervisor.config"}
    assert run(folder, QUEUE) & unneeded == set()
