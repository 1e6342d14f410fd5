"""Is a process healthy? Three separate checks: alive (from the kernel), heartbeat, and progress.

This module is the second. A late heartbeat alone is not enough: native code that holds the interpreter's lock
stops the heartbeat and still works. What counts is whether CPU time advances. (Progress, the third, is covered
by the job's own time limit.)
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

CANCEL_GRACE = 5.0  # seconds for a handler to see ctx.cancelled, before it is interrupted; a pool may change both
KILL_GRACE = 5.0  # seconds for the clean-up of an interrupted handler


class Verdict(Enum):
    WELL = "well"  # the heartbeat is recent
    BUSY = "busy"  # late, but using CPU: native code; tolerated, locks renewed
    STOPPED = "stopped"  # in state T: stopped by a signal
    STUCK = "stuck"  # late, and no CPU used for as long


class Signs(NamedTuple):
    """What was read about a process at one moment. Times are monotonic seconds; `cpu` is seconds used.

    What could not be read is None: a process that cannot be inspected may be working.
    """

    at: float
    beat: float
    cpu: float | None
    state: str | None  # the letter of /proc/PID/stat


# With no more CPU than this a late process is not working: waking and sleeping uses some, too.
_SOME_CPU = 0.05
_LONGER = 4  # times a limit, for which a process may be late while it works


def first_late(kept: Signs | None, now: Signs) -> Signs:
    """The signs to compare with later: those `kept` from when the beat was first late, if the CPU time was known."""
    return now if kept is None or kept.cpu is None else kept


def judge(now: Signs, earlier: Signs | None, heartbeat_timeout: float) -> Verdict:
    """Judge a process by its signs now and those of when its beat was first found late.

    `earlier` is None while the beat is on time. A process is judged stuck only after `heartbeat_timeout` seconds
    without a beat and without CPU; if this cannot be determined, it counts as busy.
    """
    if now.at - now.beat < heartbeat_timeout:
        return Verdict.WELL
    if now.state in ("T", "t"):
        return Verdict.STOPPED
    if now.cpu is None or earlier is None or earlier.cpu is None:
        return Verdict.BUSY  # not known yet
    if now.cpu - earlier.cpu > _SOME_CPU or now.at - earlier.at < heartbeat_timeout / 2:
        return Verdict.BUSY
    return Verdict.STUCK


def hangs(now: Signs, earlier: Signs | None, limit: float) -> bool:
    """The same for a process of ours that runs no jobs. On an overloaded machine it may be late although it works. That
    is tolerated for longer, but not for ever: it may also be in an endless loop.
    """
    late = now.at - now.beat
    return late > limit * _LONGER or judge(now, earlier, limit) in (Verdict.STOPPED, Verdict.STUCK)
