"""Ctrl-C where the caller has SIGINT ignored, as `nohup` and the `&` of a shell's script do."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .conftest import execute
from .test_processes import enqueue, status, wait_for

Start = Callable[..., Any]


def ignored(process: Any) -> set[int]:
    """The signals that a process ignores."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    mask = int(next(line.split()[1] for line in text.splitlines() if line.startswith("SigIgn:")), 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def test_a_command_that_was_started_with_sigint_ignored_leaves_it_ignored(project: Path, started: Start) -> None:
    process = started("enqueue", "greet", "--wait", interrupt=signal.SIG_IGN)
    assert process.stderr.readline().startswith("note: no supervisor is running")

    process.send_signal(signal.SIGINT)
    assert signal.SIGINT in ignored(process)
    supervisor = started("run", "--burst")

    assert process.wait(timeout=60) == 0
    assert supervisor.wait(timeout=60) == 0
    assert execute(project / "jobs.db", "SELECT status FROM jobs") == [("done",)]


def test_a_supervisor_obeys_sigint_even_where_its_caller_ignored_it(project: Path, started: Start) -> None:
    supervisor = started("run", interrupt=signal.SIG_IGN)
    wait_for(lambda: any(worker["state"] == "idle" for worker in status(project)["workers"]))

    supervisor.send_signal(signal.SIGINT)

    assert supervisor.wait(timeout=30) == 0
    assert enqueue(project) == 1
