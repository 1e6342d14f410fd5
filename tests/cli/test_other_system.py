"""On a system that is not Linux one writes an application, enqueues, reads and tests; only `run` needs Linux."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT_LINUX = Path(__file__).parents[1] / "other_system"
PROGRAM = """
import asyncio, os, signal, select
from supervisor import AsyncQueue, Queue, Status, WaitTimeout, testing
from jobs import greet

assert not hasattr(os, "O_PATH") and not hasattr(signal, "SIGRTMIN") and not hasattr(select, "epoll")
with Queue("sqlite:///app.db") as queue:
    job = greet.enqueue("Ada")
    assert queue.job(job).status is Status.PENDING
    try:
        queue.wait(job, timeout=0.05)
    except WaitTimeout as error:
        print(error)
    assert queue.cancel(queue.enqueue("greet", {"name": "Grace"}, delay=60))

    async def ask():
        async with AsyncQueue("sqlite:///app.db") as asking:
            waited = asyncio.create_task(asking.wait(job, timeout=20))
            await asyncio.sleep(0.05)
            await asyncio.to_thread(testing.run_due, queue, {"greet": greet})
            return await waited

    print(asyncio.run(ask()).result)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    assert supervisor(tmp_path, "init")[0] == 0
    return tmp_path


def python(folder: Path, *words: str) -> tuple[int, str]:
    """The exit code and the output of an interpreter without what macOS lacks."""
    environment = os.environ | {"PYTHONPATH": f"{WITHOUT_LINUX}{os.pathsep}{folder}"}
    command = [sys.executable, *words]
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    return ended.returncode, ended.stdout + ended.stderr


def supervisor(folder: Path, *words: str) -> tuple[int, str]:
    return python(folder, "-m", "supervisor", *words)


def test_an_application_is_written_and_tested(project: Path) -> None:
    code, printed = python(project, "-c", PROGRAM)
    assert (code, printed.splitlines()[-1:]) == (0, ["{'greeting': 'Hello, Ada!'}"]), printed
    assert "no supervisor is running" in printed


def test_the_commands_that_need_no_supervisor_work(project: Path) -> None:
    for words, expected in (
        (["enqueue", "greet", "{}"], "1"),
        (["check"], "supervisor.toml: OK"),
        (["status"], "no supervisor is running"),
        (["jobs", "list"], "greet"),
        (["jobs", "show", "1"], "pending"),
        (["jobs", "why", "1"], "no supervisor is running"),
        (["limit", "greet", "--max-running", "2"], "max_running 2"),
        (["schedules", "list"], "there are no schedules"),
        (["backup", "copy.db"], "copy.db"),
        (["jobs", "cancel", "1"], "cancelled"),
    ):
        code, printed = supervisor(project, *words)
        assert code == 0, printed
        assert expected in printed


def test_doctor_and_run_say_that_they_need_linux(project: Path) -> None:
    assert "this is darwin" in supervisor(project, "doctor")[1]
    code, printed = supervisor(project, "run", "--burst")
    assert code == 2
    assert printed == (
        "error: `supervisor run` needs Linux; the other commands work here, too\n"
        "hint: deploy/compose.yaml runs it in a container, with podman or docker\n"
    )
