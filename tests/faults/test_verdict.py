"""The verdict can fail: what a test's supervisors use and leave behind is found, also on a loaded machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.site_under_test import MakeSite, wait_for
from tests.watch import Watch

WINDOW = 0.5  # seconds: the shorter, the less these tests burn
WORK = '[pools.work]\nhandler = "jobs:work"\nworkers = 1\n'


@pytest.fixture
def neighbours() -> Iterator[None]:
    """The machine is loaded: more processes want a CPU than there are. One CPU of it; other tests need the others."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})  # of those that are started from here on, too
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield
    os.sched_setaffinity(0, before)
    process.kill()
    process.wait()


def looked_at(program: str, seconds: float) -> list[str]:
    """What is found wrong with it in that time; sooner, if something is."""
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        watch = Watch(process.pid, WINDOW)
        end = time.monotonic() + seconds
        while not watch.wrong and time.monotonic() < end:
            time.sleep(0.1)
            watch.look()
        return watch.wrong
    finally:
        process.kill()
        process.wait()


def test_a_loop_that_never_sleeps_is_found_also_among_others(neighbours: None) -> None:
    assert looked_at("import select\nwhile True: select.select([], [], [], 0)", 60)


def test_a_process_that_outlives_its_supervisor_is_named_and_ended(make_site: MakeSite) -> None:
    site = make_site(WORK)
    supervisor = site.start()
    environment = dict(
        entry.split(b"=", 1)
        for entry in Path(f"/proc/{supervisor.pid}/environ").read_bytes().split(b"\0")
        if b"=" in entry
    )
    stray = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=environment)
    wait_for(lambda: stray.pid in site.survivors(supervisor))
    assert site.stop(supervisor) == 0
    site.patience_at_end = 0.5
    site.close()
    assert len(site.wrong) == 1
    assert f"process {stray.pid} has outlived its supervisor" in site.wrong[0]
    assert stray.wait() == -signal.SIGKILL
    site.wrong.clear()
