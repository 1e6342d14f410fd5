"""The kernel's groups of sessions: where they are on, the nice value of a process holds only within its session.

Each session then gets an equal share of the cores, and a nice value of its own says how large that is: see "The
autogroup feature" in sched(7). It is without effect where the control group of the process has a share of its own.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

ENABLED = Path("/proc/sys/kernel/sched_autogroup_enabled")
_OWN = "/proc/self/autogroup"
_PATIENCE = 2.0  # seconds: the kernel lets all users together change ten of them a second
_TRY_AGAIN = 0.03  # seconds


def set_nice(nice: int) -> None:
    """Give the session of this process a nice value, if the kernel groups sessions.

    If more than twenty workers start at once, the kernel may refuse some of them: these keep an equal share.
    """
    deadline = time.monotonic() + _PATIENCE
    with suppress(OSError):  # this kernel has no such groups
        if ENABLED.read_bytes().strip() != b"1":
            return
        own = os.open(_OWN, os.O_WRONLY | os.O_CLOEXEC)
        try:
            while not _written(own, nice) and time.monotonic() < deadline:
                time.sleep(_TRY_AGAIN)
        finally:
            os.close(own)


def _written(own: int, nice: int) -> bool:
    try:
        return bool(os.write(own, str(nice).encode()))
    except BlockingIOError:
        return False
