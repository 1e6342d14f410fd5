"""How much memory this machine or container has, and whether the kernel is short of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
OF_MACHINE = Path("/proc/pressure/memory")
_UNLIMITED = 1 << 60  # cgroup version 1 writes a number near 2^63 for no limit


def available() -> int:
    """Bytes of the machine, or of our control group if that may use less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return limit(total, _own_cgroups(), _CGROUPS)


def limit(total: int, cgroups: str, root: Path) -> int:
    """Bytes that may be used: the minimum of the machine's total and the limits of our cgroup and its parents.

    `cgroups` is the text of /proc/self/cgroup, `root` where they are mounted.
    """
    return min((total, *(found for file in _files(cgroups, root) if (found := _number(file)) is not None)))


def _files(cgroups: str, root: Path) -> Iterator[Path]:
    for line in cgroups.splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers == "":  # version 2
            base, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        place = base / path.lstrip("/")
        # In a container the path may be the host's; what is mounted is the container's own.
        while place != base:
            yield place / name
            place = place.parent
        yield base / name


def _number(file: Path) -> int | None:
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and int(text) < _UNLIMITED else None


def _own_cgroups() -> str:
    try:
        return Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def pressure_file() -> Path | None:
    """Where the kernel tells how short of memory our control group is, else the machine; None if it does not tell."""
    own = (file.with_name("memory.pressure") for file in _files(_own_cgroups(), _CGROUPS) if file.name == "memory.max")
    return next((file for file in (*own, OF_MACHINE) if file.exists()), None)


def pressure(file: Path) -> float:
    """For which part of the last ten seconds, in percent, all processes waited for memory; 0 if unknown."""
    try:
        for line in file.read_text(encoding="ascii").splitlines():
            kind, *fields = line.split()
            if kind == "full":
                return float(fields[0].removeprefix("avg10="))
    except (OSError, ValueError, IndexError):
        pass
    return 0.0
