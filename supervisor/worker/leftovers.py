"""What jobs leave behind in their worker: threads, and processes that they have started.

Either may be wanted: a library starts its threads with the first job, a program is kept for the next one. So nothing
is ended here. But what was left a short while ago may end or stop the worker in the middle of somebody else's job.
"""

from __future__ import annotations

import os
from _thread import _count
from os import getpid, stat, waitid

# By name: a handler that replaces them must not reach the loop.
from time import monotonic

from supervisor.system import kernel

NEW = 10.0  # seconds for which what was left may still be meant to do harm
HARMLESS_AFTER = 1.0  # seconds for which a cautious worker lets it, while no job runs
_QUICKEST_FORK = 0.0001  # seconds that starting a process takes at least
_OFTEN = 0.01  # seconds between two lists of the children, where there are some that nobody minds
_ANY = os.WEXITED | os.WNOHANG | os.WNOWAIT


class Leftovers:
    """Made when the handler is set up: what there is by then is no job's. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._threads, self._children = _count(), _children() or frozenset()
        self._all_threads = _all_threads()
        self._came = -NEW
        self._listed = self._asked = 0.0
        self._quick = False  # the last run before a rest was

    def new(self, now: float) -> bool:
        """Whether jobs have left something a short while ago. Called before each run, of which most are too short to
        have started a process: a system call for each would cost more than they do.
        """
        threads, known = _count(), self._threads
        if threads != known:
            self._threads = threads
            if threads > known:
                self._came = now
        quick = self._quick or now - self._asked < _QUICKEST_FORK
        self._asked, self._quick = now, False
        if quick:
            return now - self._came < NEW
        if self._children and now - self._listed < _OFTEN:
            return now - self._came < NEW
        if self._children or _has_children():
            self._list_children(now)
        return now - self._came < NEW

    def rest(self, now: float) -> None:
        """The last run has ended, and no other begins for a while."""
        self._quick = now - self._asked < _QUICKEST_FORK

    def look(self) -> None:
        """The same for threads that only the kernel knows: those of C libraries."""
        threads, known = _all_threads(), self._all_threads
        self._all_threads = threads
        if threads > known:
            self._came = monotonic()

    def dangerous_for(self, now: float) -> float:
        """Seconds that are left until what came last has had the time to do its harm."""
        return max(0.0, self._came + HARMLESS_AFTER - now) if self.new(now) else 0.0

    def _list_children(self, now: float) -> None:
        children = _children()
        self._listed = now
        if children is None:
            return
        if children - self._children:
            self._came = now
        self._children = children


def _has_children() -> bool:
    """One quick system call, which leaves those that have ended to whoever waits for them."""
    try:
        waitid(os.P_ALL, 0, _ANY)
    except ChildProcessError:
        return False
    return True


def _children() -> frozenset[int] | None:
    """None where the system does not tell."""
    found = kernel.children(getpid()) if _has_children() else []
    return None if found is None else frozenset(found)


def _all_threads() -> int:
    try:
        return stat("/proc/self/task").st_nlink  # noqa: PTH116 - a folder for each, and two more
    except OSError:
        return 0
