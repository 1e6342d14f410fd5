"""Run commands in this process, or as a user would."""

from __future__ import annotations

import io
import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli import main
from tests import forkserver

COMMAND = str(Path(sys.executable).with_name("supervisor"))

CONFIGURATION = """
database = "sqlite:///jobs.db"
[pools.greet]
handler = "jobs:greet"
workers = 1
retry = { max_attempts = 1 }
"""
HANDLERS = """
import time

def greet(payload, ctx):
    if payload.get("boom"):
        raise ValueError("boom \\x1b[31m")
    ctx.progress(0.5, "half")
    time.sleep(payload.get("sleep", 0))
    return {"greeting": payload.get("name")}
"""


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on standard output."""
        return json.loads(self.out)

    def errors(self) -> list[str]:
        """The lines on standard error, which hold no traceback; hints are checked and left out."""
        assert "Traceback" not in self.err
        lines = self.err.splitlines()
        assert all(line.startswith(("error: ", "hint: ")) for line in lines), self.err
        assert sum(line.startswith("hint: ") for line in lines) <= 1
        return [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]


Run = Callable[..., Ran]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUPERVISOR_CONFIG", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)

    def run(*arguments: object, stdin: str | bytes = "") -> Ran:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a configuration and its handler, and no database yet."""
    (tmp_path / "supervisor.toml").write_text(CONFIGURATION)
    (tmp_path / "jobs.py").write_text(HANDLERS)
    return tmp_path


@pytest.fixture
def database(project: Path) -> Path:
    """The project's database, with its tables and without jobs."""
    assert main(["migrate", "-c", str(project / "supervisor.toml")]) == 0
    return project / "jobs.db"


def count(database: Path) -> int:
    """How many jobs there are, without touching anything; none where there is no database."""
    if not database.is_file() or not database.stat().st_size:
        return 0
    with closing(sqlite3.connect(database)) as connection:
        return int(connection.execute("SELECT count(*) FROM jobs").fetchone()[0])


def execute(database: Path, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
    """What another program would do to the table."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        return connection.execute(sql, parameters).fetchall()


def command(*arguments: str, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return forkserver.run(arguments, cwd=cwd, **options)


@contextmanager
def interrupted_by(disposition: signal.Handlers) -> Iterator[None]:
    """Programs started meanwhile find SIGINT so, whatever the caller of the tests (nohup, a script's `&`) has set."""
    usual = signal.signal(signal.SIGINT, disposition)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


@pytest.fixture
def started(project: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts commands that go on, with the usual SIGINT unless told; whatever still runs at the end is stopped."""
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str, interrupt: signal.Handlers = signal.SIG_DFL) -> subprocess.Popen[str]:
        with interrupted_by(interrupt):
            process = subprocess.Popen(
                [COMMAND, *arguments],
                cwd=project,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=30)
