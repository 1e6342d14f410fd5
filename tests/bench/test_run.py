"""Runs of the real program: what they leave behind, and what they do not."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.site_under_test import alive, descendants, wait_for

ROOT = Path(__file__).parents[2]
PATIENCE = 90.0  # seconds for one run, which takes a few


class Run:
    """One start of bench/run.py with its results and its databases in folders of the test."""

    def __init__(self, folder: Path) -> None:
        self.results = folder / "results"
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(ROOT / "bench" / "run.py"), "--quick", *arguments]
        places = ["--output", str(self.results), "--scratch", str(self.scratch)]
        self.process = subprocess.Popen(
            [*command, *places], env=os.environ | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return self.process

    def whole(self, *arguments: str, **env: str) -> str:
        """Run to the end; returns what was printed."""
        printed, _ = self.start(*arguments, **env).communicate(timeout=PATIENCE)
        assert self.process is not None
        assert self.process.returncode == 0, printed
        return printed

    def left_behind(self) -> list[psutil.Process]:
        """Processes that have to do with this run's folder."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if any(str(self.scratch) in word for word in [*process.cmdline(), process.cwd()]):
                    found.append(process)
        return found


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    if run.process is not None and run.process.poll() is None:
        run.process.kill()
        run.process.wait()


def test_a_run_writes_table_figures_and_picture_and_leaves_nothing_else(run: Run) -> None:
    printed = run.whole("--only", "recovery", "--peers", "none")
    assert sorted(path.name for path in run.results.iterdir()) == ["overview.svg", "results.json", "results.md"]
    figures = json.loads((run.results / "results.json").read_text())
    [series] = [series for series in figures["series"] if series["figure"] == "rerun"]
    assert len(series["rounds"]) == 1
    assert len(series["rounds"][0]) == 30
    assert (run.results / "results.md").read_text() in printed
    assert list(run.scratch.iterdir()) == []
    assert run.left_behind() == []


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process_and_no_folder(run: Run, how: signal.Signals) -> None:
    process = run.start("--only", "latency", "--peers", "none")
    children = wait_for(
        lambda: found if len(found := descendants(process.pid)) >= 7 else None, "workers", patience=PATIENCE
    )
    process.send_signal(how)
    printed, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, printed
    assert [child for child in children if alive(child)] == []
    assert run.left_behind() == []
    assert list(run.scratch.iterdir()) == []
    assert not run.results.exists()
