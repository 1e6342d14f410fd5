"""What a run was made on and with."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from bench.peers import install
from bench.peers.base import Peer


def describe(folder: Path) -> dict[str, Any]:
    """The machine; nothing that names it or its user."""
    return {
        "made": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": _file_system(folder),
        "load before": round(os.getloadavg()[0], 2),
    }


def versions(peers: Iterable[Peer]) -> dict[str, str]:
    """Ours and the peers'."""
    found = {
        "job-supervisor": importlib.metadata.version("job-supervisor"),
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
    }
    for peer in peers:
        found |= peer.versions()
        if install.REDIS in peer.needs:
            found["Redis"] = install.redis_version()
    return found


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(folder: Path) -> str:
    mounts = [part for part in psutil.disk_partitions(all=True) if folder.is_relative_to(part.mountpoint)]
    return max(mounts, key=lambda part: len(part.mountpoint)).fstype if mounts else "unknown"
