"""A control group of a test's own, of version 2 or 1, whichever this machine has for the controller."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# What the limits are called: version 2, version 1.
LIMITS = {"memory": ("memory.max", "memory.limit_in_bytes"), "pids": ("pids.max", "pids.max")}


class Cgroup:
    """`join` is for a process to come (`preexec_fn`); `version` tells what the kernel really used."""

    def __init__(self, folder: Path, controller: str, version: int) -> None:
        self.folder = folder
        self._limit = folder / LIMITS[controller][2 - version]
        self.version = version

    def limit(self, most: int | str) -> None:
        self._limit.write_text(str(most))

    @property
    def kills(self) -> int:
        """How many of its processes the kernel has killed for memory."""
        events = self.folder / ("memory.events" if self.version == 2 else "memory.oom_control")
        return int(dict(line.split() for line in events.read_text().splitlines())["oom_kill"])

    @property
    def join(self) -> Callable[[], None]:
        processes = self.folder / "cgroup.procs"
        return lambda: processes.write_text(str(os.getpid())) and None


@contextlib.contextmanager
def cgroup(controller: str) -> Iterator[Cgroup]:
    """It ends when all its processes have."""
    made = _make(controller)
    try:
        yield made
    finally:
        deadline = time.monotonic() + 20
        while True:
            try:
                made.folder.rmdir()
                break
            except OSError:  # the last of its processes is just leaving
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


def _make(controller: str) -> Cgroup:
    tried = []
    for version, root in _roots(controller):
        folder = root / f"job-supervisor-{uuid.uuid4().hex[:8]}"
        try:
            if version == 2:
                (root / "cgroup.subtree_control").write_text(f"+{controller}")
            folder.mkdir()
        except OSError as error:
            tried.append(f"{root}: {error.strerror}")
        else:
            return Cgroup(folder, controller, version)
    pytest.skip(f"a cgroup of one's own with the controller {controller} is needed, as root has; {tried}")


def _roots(controller: str) -> Iterator[tuple[int, Path]]:
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, point, kind, options, *_ = line.split(" ")
        if kind == "cgroup2" and controller in Path(point, "cgroup.controllers").read_text(encoding="utf-8").split():
            yield 2, Path(point)
        elif kind == "cgroup" and controller in options.split(","):
            yield 1, Path(point)
