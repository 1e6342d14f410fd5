"""Which processes belong to a supervisor, where nobody who has started them is left to tell.

A template ends what its workers' jobs have started. When it is killed together with its supervisor, a program that a
job has started in a session of its own lives on, and no process has it for a child. But it has inherited the
environment, where the path of the supervisor's scoreboard stands; and what was only forked has a piece of that file
mapped as nobody else has.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path

from supervisor.system import kernel

VARIABLE = "JOB_SUPERVISOR"
"""The environment variable in which workers, and what they start, find the path of their supervisor's scoreboard."""

_MAPPED = b"r--p"  # privately: whoever looks at a scoreboard, or writes to it, shares it

_mapping: mmap.mmap | None = None


def mark(scoreboard: Path) -> None:
    """From now on what this process starts can be told to be that supervisor's."""
    global _mapping
    os.environ[VARIABLE] = str(scoreboard)
    with contextlib.suppress(OSError), scoreboard.open("rb") as file:  # it may be gone: then the supervisor is, too
        _mapping = mmap.mmap(file.fileno(), mmap.PAGESIZE, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)


def processes_of(scoreboard: str) -> dict[int, int]:
    """The pids of the living processes of a supervisor, as far as we may look at them, and when they were started."""
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
    """Nothing if the process is gone or another user's."""
    try:
        return file.read_bytes()
    except OSError:
        return b""
