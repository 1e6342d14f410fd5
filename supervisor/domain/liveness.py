"""Is a process all right? Three judgements, kept apart: alive (the kernel says so), beat, and progress.

This is the second. A late beat alone condemns nobody: native code that holds the interpreter's lock stops
the beat and still works. What counts is whether CPU time advances. (Progress, the third, is the job's own
time limit.)
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Verdict(Enum):
    WELL = "well"  # the beat is fresh
    BUSY = "busy"  # late, but using CPU: native code; tolerated, locks renewed
    STOPPED = "stopped"  # in state T: somebody has stopped it
    STUCK = "stuck"  # late, and no CPU used for as long


class Signs(NamedTuple):
    """What was seen of a process at one moment. Times are monotonic seconds; `cpu` is seconds used.

    What could not be read is None: a process that nobody can look at may be at work.
    """

    at: float
    beat: float
    cpu: float | None
    state: str | None  # the letter of /proc/PID/stat


# Beyond this little CPU a late process is not working: waking and sleeping costs some, too.
_SOME_CPU = 0.05


def first_late(kept: Signs | None, now: Signs) -> Signs:
    """The signs to compare later ones with: those `kept` of when the beat was first late, if the CPU time was known."""
    return now if kept is None or kept.cpu is None else kept


def judge(now: Signs, earlier: Signs | None, heartbeat_timeout: float) -> Verdict:
    """Judge a process by its signs now and those of when its beat was first found late.

    `earlier` is None while the beat is in time. A process is condemned only after a whole `heartbeat_timeout` of
    seconds without a beat and without CPU; what nobody can tell counts as busy.
    """
    if now.at - now.beat < heartbeat_timeout:
        return Verdict.WELL
    if now.state in ("T", "t"):
        return Verdict.STOPPED
    if now.cpu is None or earlier is None or earlier.cpu is None:
        return Verdict.BUSY  # nobody can tell yet
    if now.cpu - earlier.cpu > _SOME_CPU or now.at - earlier.at < heartbeat_timeout / 2:
        return Verdict.BUSY
    return Verdict.STUCK
