"""The interpreter, its libraries and the machine."""

from __future__ import annotations

import platform
import sqlite3
import sys
import time
from importlib import metadata
from typing import TYPE_CHECKING

from supervisor.doctor.finding import Finding, fault, good, note, warning
from supervisor.domain.duration import human_size

if TYPE_CHECKING:
    from supervisor.config import Settings

_OLDEST_SQLITE = (3, 37, 0)  # STRICT tables
_MENDED_SQLITE = (3, 51, 3)  # connections that write and checkpoint at once
_RELEASED = 1_760_000_000.0  # Unix seconds; no clock that is right shows less

OUR_NAME = "job-supervisor"
THEIR_NAME = "supervisor"  # supervisord's distribution, with an import package of the same name


def interpreter() -> Finding:
    version = platform.python_version()
    if not sys.platform.startswith("linux"):
        return fault("system", f"this is {sys.platform}", "run the supervisor on Linux")
    return good("python", f"Python {version} in {sys.prefix}")


def sqlite_library() -> Finding:
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        return fault("sqlite", f"SQLite {version} is too old", "use a Python with SQLite 3.37 or newer")
    if sqlite3.sqlite_version_info < _MENDED_SQLITE:
        return note(
            "sqlite",
            f"SQLite {version}: before 3.51.3, programs that write and checkpoint at the same moment can, "
            "very rarely, damage a database",
            "let the supervisor do the checkpoints (it does), and keep backups: `supervisor backup FILE`",
        )
    return good("sqlite", f"SQLite {version}")


def names() -> Finding:
    """PyPI's `supervisor` (supervisord) brings a package of the same import name."""
    try:
        theirs = metadata.version(THEIR_NAME)
    except metadata.PackageNotFoundError:
        return good("names", "no other distribution brings a package `supervisor`")
    return fault(
        "names",
        f"supervisord's distribution `{THEIR_NAME}` {theirs} is installed beside `{OUR_NAME}`, and both "
        "bring a package `supervisor`",
        f"pip uninstall {THEIR_NAME} {OUR_NAME}, then pip install {OUR_NAME} alone; keep supervisord in an "
        "environment of its own",
    )


def clock() -> Finding:
    now = time.time()
    shown = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    if now < _RELEASED:
        return fault("clock", f"it shows {shown}", "set the clock: jobs are due by it")
    return good("clock", shown)


def memory(settings: Settings) -> Finding:
    """Whether every pool at its largest fits."""
    import psutil

    total = _limit(psutil.virtual_memory().total)
    wanted, unlimited = 0, []
    for pool in settings.pools.values():
        most = pool.max_workers * pool.max_memory if pool.max_memory is not None else None
        if pool.memory_budget is not None:
            most = pool.memory_budget if most is None else min(most, pool.memory_budget)
        if most is None:
            unlimited.append(pool.name)
        else:
            wanted += most
    fact = f"{human_size(total)} for this machine or container"
    if wanted > total:
        return warning(
            "memory",
            f"{fact}, but the pools may use {human_size(wanted)}",
            "lower max_workers, max_memory or memory_budget",
        )
    if unlimited:
        return note(
            "memory",
            f"{fact}; no limit is set for {', '.join(unlimited)}",
            "max_memory replaces a worker that has grown, memory_budget holds back the whole pool",
        )
    return good("memory", f"{fact}; the pools use {human_size(wanted)} at most")


def _limit(total: int) -> int:
    """Bytes that may be used: a container's limit may be below the machine's memory."""
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:  # noqa: PTH123 - not a user's path
            text = file.read().strip()
    except OSError:
        return total
    return min(total, int(text)) if text.isdecimal() else total
