"""Runs of the programs of the benchmark, and what every record of one says about itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.record import Record

BENCH = Path(__file__).parents[2] / "bench"
ABOUT = {"made": "today", "cores": 2, "processor": "one", "memory": "24 GiB", "kernel": "Linux", "load before": 0.1}


def empty(**more: Any) -> Record:
    """A record without figures, of one round."""
    return Record(about=ABOUT | {"rounds": 1, "quick": False} | more)


@pytest.fixture
def measured(tmp_path: Path) -> Callable[..., Record]:
    """Runs a program without peers, and reads the figures that it has written."""

    def run(program: str, *arguments: str) -> Record:
        command = [sys.executable, str(BENCH / f"run_{program}.py"), "--quick", "--peers", "none", *arguments]
        done = subprocess.run(
            [*command, "--output", str(tmp_path / "results")], capture_output=True, text=True, check=False, timeout=280
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return Record.from_json((tmp_path / "results" / f"{program}.json").read_text())

    return run
