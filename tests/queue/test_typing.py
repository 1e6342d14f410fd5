"""Type checkers know the parameters and the answers of every method, awaited or not."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT

RIGHT = """
from collections.abc import Iterator
from typing import assert_type

from supervisor import AsyncQueue, Enqueue, Job, JobEvent, JobPage, Progress, Queue, Status


async def use(queue: AsyncQueue) -> None:
    assert_type(await queue.enqueue("tag", {"n": 1}, priority=5, delay="10s", connection=object()), int)
    assert_type(await queue.put("tag", unique_key="k"), tuple[int, bool])
    assert_type(await queue.enqueue_many("tag", [1, Enqueue(2, priority=3)]), list[int])
    assert_type(await queue.job(1), Job)
    assert_type(await queue.jobs("tag", status=[Status.DONE], limit=5), JobPage)
    assert_type(await queue.count(status="done"), int)
    assert_type(await queue.progress(1), Progress)
    assert_type(await queue.cancel(1), Status)
    assert_type(await queue.pause("tag", force=True), bool)
    assert_type(await queue.wait(1, timeout=3), Job)
    async for event in queue.events(1):
        assert_type(event, JobEvent)


def block(queue: Queue) -> None:
    assert_type(queue.put("tag"), tuple[int, bool])
    assert_type(queue.jobs()[0], Job)
    assert_type(queue.events(1), Iterator[JobEvent])
"""
WRONG = """
from supervisor import AsyncQueue


async def use(queue: AsyncQueue) -> None:
    await queue.enqueue(5)
    await queue.enqueue("tag", prioritty=5)
    await queue.put("tag", unique_key=5)
    await queue.jobs(limit="5")
    await queue.cancel()
"""


def checked(checker: str, folder: Path, text: str) -> list[str]:
    """The lines of a checker's errors."""
    (folder / "program.py").write_text(text)
    commands = {
        "mypy": [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache"), "program.py"],
        "basedpyright": [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "program.py"],
    }
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MYPYPATH": str(ROOT)}
    ran = subprocess.run(
        commands[checker], cwd=folder, env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert "program.py" in ran.stdout or ran.returncode == 0, ran.stdout + ran.stderr
    return [line for line in ran.stdout.splitlines() if "error:" in line]


@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
def test_a_checker_knows_every_signature(checker: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed: it comes with the extra dev")
    if checker == "basedpyright":
        (tmp_path / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{ROOT}"]}}')
    assert checked(checker, tmp_path, RIGHT) == []
    wrong = checked(checker, tmp_path, WRONG)
    assert {line.split(":")[1] for line in wrong if "note" not in line} == {"6", "7", "8", "9", "10"}, wrong
