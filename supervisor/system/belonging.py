"""Which processes belong to a supervisor, when the processes that started them are gone.

A template ends what its workers' jobs have started. When it is killed together with its supervisor, a program that a
job has started in a session of its own survives, and is no longer a child of any of our processes. But it has
inherited the environment, which contains the path of the supervisor's scoreboard; and a process that was only forked
has a private mapping of that file, as no other process has.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path

from supervisor.system import kernel

VARIABLE = "JOB_SUPERVISOR"
"""The environment variable in which workers, and what they start, find the path of their supervisor's scoreboard."""

_MAPPED = b"r--p"  # private: processes that read or write a scoreboard map it shared

_mapping: mmap.mmap | None = None


def mark(scoreboard: Path) -> None:
    """From now on, processes that this one starts can be identified as that supervisor's."""
    global _mapping
    os.environ[VARIABLE] = str(scoreboard)
    with contextlib.suppress(OSError), scoreboard.open("rb") as file:  # may be gone, if the supervisor is gone, too
        _mapping = mmap.mmap(file.fileno(), mmap.PAGESIZE, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)


def processes_of(scoreboard: str) -> dict[int, int]:
    """The pids of a supervisor's living processes, as far as we may inspect them, and when they were started."""
    variable = b"%b=%b" % (VARIABLE.encode(), os.fsencode(scoreboard))
    mapped = tuple(os.fsencode(scoreboard) + end for end in (b"", b" (deleted)"))
    found = {}
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            started = kernel.start_ticks(int(process.name))
            if started is not None and (_inherited(process, variable) or _mapped(process, mapped)):
                found[int(process.name)] = started
    return found


def _inherited(process: Path, variable: bytes) -> bool:
    return variable in _bytes(process / "environ").split(b"\0")


def _mapped(process: Path, endings: tuple[bytes, ...]) -> bool:
    lines = _bytes(process / "maps").splitlines()
    return any(line.endswith(endings) and line.split(None, 2)[1] == _MAPPED for line in lines)


def _bytes(file: Path) -> bytes:
    """Empty if the process is gone or another user's."""
    try:
        return file.read_bytes()
    except OSError:
        return b""
