"""What the benchmarks share: a folder with a configuration, handlers and a running supervisor."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HANDLERS = """
import time

def noop(payload, ctx):
    return None

def stamp(payload, ctx):
    return time.time()

def once(payload, ctx):
    now = time.time()
    if ctx.token == 1:
        time.sleep(60)
    return now
"""


@contextlib.contextmanager
def installation(pools: str) -> Iterator[Path]:
    """A folder on a real disk with `pools` as its configuration; removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    (folder / "jobs.py").write_text(HANDLERS)
    (folder / "supervisor.toml").write_text(f'database = "sqlite:///./app.db"\n{pools}\n[log]\nlevel = "error"\n')
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def supervisor(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`supervisor run` in the folder; stopped at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "supervisor", "run", "-c", str(folder / "supervisor.toml"), *arguments]
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(60)


def until(condition: object, seconds: float = 60.0) -> None:
    """Wait until a function returns something true."""
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.005)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
