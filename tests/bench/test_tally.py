"""The instruments by which every contestant is measured."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.peers import PEERS
from bench.peers.base import PROBE, PROGRAMS
from bench.probe import tally

WORKER = """
import os, sys, time
import tally
for times, pause in eval(sys.argv[1]):
    if os.fork() == 0:
        for number in range(times):
            time.sleep(pause if number else 0)
            tally.mark()
        os._exit(0)
    os.wait()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(tally.FOLDER, str(tmp_path))
    monkeypatch.setenv(tally.PIPE, str(tmp_path / "arrivals"))
    monkeypatch.setenv("PYTHONPATH", str(PROBE))
    return tmp_path


def run(program: str, *arguments: object) -> None:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    subprocess.run(command, check=True, timeout=60, env=os.environ)


def in_children(*jobs: tuple[int, float]) -> None:
    """One process after the other, each with (number of jobs, seconds between them)."""
    run(WORKER, list(jobs))


def test_the_jobs_of_all_processes_are_counted(folder: Path) -> None:
    in_children((3, 0.0), (5, 0.0), (0, 0.0))
    count = tally.read(folder)
    assert (count.processes, count.jobs) == (2, 8)


def test_a_forked_child_counts_for_itself(folder: Path) -> None:
    run("import os, tally; tally.mark(); child = os.fork(); tally.mark(); child and os.wait()")
    count = tally.read(folder)
    assert (count.processes, count.jobs) == (2, 3)


def test_a_rate_is_from_the_first_job_of_any_process_to_the_last(folder: Path) -> None:
    began = time.monotonic()
    in_children((1, 0.0))
    time.sleep(0.1)
    in_children((2, 0.05))
    count = tally.read(folder)
    assert count.rate == pytest.approx(2 / (count.last - count.first))
    assert began < count.first
    assert count.last - count.first >= 0.15


def test_a_handler_that_begins_is_told_with_its_process_and_time(folder: Path) -> None:
    arrivals = tally.Arrivals(folder / "arrivals")
    before = time.monotonic()
    run("import tally; tally.arrive(7)")
    told = arrivals.next(30)
    arrivals.close()
    assert told.number == 7
    assert told.pid != os.getpid()
    assert before < told.at < time.monotonic()


@pytest.mark.parametrize("name", PEERS)
def test_the_program_of_every_peer_can_be_read(name: str) -> None:
    [program] = [Path(word) for word in PEERS[name].program if word.startswith(str(PROGRAMS))]
    if program.suffix == ".py":
        compile(program.read_text(), str(program), "exec")
    else:
        assert program.suffix == ".mjs"
        assert "feed" in program.read_text()
