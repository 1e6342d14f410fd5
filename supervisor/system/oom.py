"""Whether the kernel's out-of-memory killer has struck: a parent cannot see who killed its child.

The kernel counts a kill before the victim dies. The count of our own cgroup (version 2, else 1) covers
only its processes; without one, the count of the whole machine is used.
"""

from __future__ import annotations

import os
from pathlib import Path

_FIELD = b"oom_kill "
_MOST = 64 << 10  # bytes; the longest of these files has some thousands
_COUNTERS = {"cgroup2": "memory.events", "cgroup": "memory.oom_control"}  # by the type of tree, the better first


class OomCounter:
    """Call `look` every second or so; `struck` tells whether there was a kill since the look before the last.
    `forget` everything before, after a long time without a look.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._file = next((file for file in _counters(root) if _count(file) is not None), None)
        self._before = self._latest = 0
        self.forget()

    def look(self) -> None:
        self._before, self._latest = self._latest, self._now()

    def forget(self) -> None:
        self._before = self._latest = self._now()

    def struck(self) -> bool:
        return self._now() > self._before

    def _now(self) -> int:
        """The count; the last known one if it cannot be read now."""
        count = None if self._file is None else _count(self._file)
        return self._latest if count is None else count


def _count(file: Path) -> int | None:
    """The number after `oom_kill`; None if the file is missing or does not contain it."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(descriptor, _MOST)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    _, found, rest = (b"\n" + text).partition(b"\n" + _FIELD)
    number = rest.partition(b"\n")[0]
    return int(number) if found and number.isdigit() else None


def _counters(root: Path) -> list[Path]:
    """Where the count may be found, the most specific first."""
    places = _places(root)
    files = []
    for kind, name in _COUNTERS.items():
        for mount, shown in _mounts(root, kind):
            # A container may see only a part of the tree, which starts at its own place.
            below = places.get(kind, "").removeprefix(shown.rstrip("/"))
            files.append(root / mount.lstrip("/") / below.lstrip("/") / name)
    return [*files, root / "proc/vmstat"]


def _places(root: Path) -> dict[str, str]:
    """Our path in each type of tree; /proc/self/cgroup names no controllers for version 2."""
    found = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            found["cgroup2"] = path
        elif "memory" in controllers.split(","):
            found["cgroup"] = path
    return found


def _mounts(root: Path, kind: str) -> list[tuple[str, str]]:
    """(mount point, the part of the tree that it shows) of version 2, or of version 1's memory controller."""
    found = []
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields, system = before.split(" "), after.split(" ")
        memory = kind == "cgroup2" or "memory" in system[-1].split(",")
        if system[0] == kind and memory and len(fields) > 4:
            found.append((fields[4], fields[3]))
    return found


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
