"""What jobs leave behind in their worker: threads of Python and processes that they have started.

Either may be intended: a library starts its threads with the first job, a program is kept for the next one. So nothing
is ended here. But what was left recently may end or stop the worker in the middle of another job.
"""

from __future__ import annotations

import os
import sys
import threading
from _thread import _count
from concurrent.futures.thread import _worker
from os import getpid, waitid
from types import FrameType

from supervisor.system import kernel

NEW = 10.0  # seconds during which something left behind may still be about to do harm
HARMLESS_AFTER = 1.0  # seconds that a cautious worker waits for that while no job runs
_QUICKEST_FORK = 0.0001  # minimum seconds that starting a process takes
_OURS = 1  # thread besides the main one: the heartbeat's
_SHORT_PAUSE = 0.01  # seconds that it takes to settle and to claim
_OFTEN = 0.01  # seconds between two listings of the children, if there are harmless ones
_EXECUTOR = _worker.__code__
_ANY = os.WEXITED | os.WNOHANG | os.WNOWAIT


class Leftovers:
    """Created when the handler is set up: what exists by then belongs to no job. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._threads, self._children = _count(), _children() or frozenset()
        self._known = frozenset(threading.enumerate())
        self._came = -NEW
        self._listed = self._asked = self._rested = 0.0

    def expect_thread(self) -> None:
        """The worker itself has started a thread."""
        self._threads += 1

    def rest(self, now: float) -> None:
        """Until the next call of `new` no job runs."""
        self._rested = now

    def new(self, now: float) -> bool:
        """Whether jobs have left something recently. Called before each run; most runs are too short to have started
        a process, and a system call for each would cost more than they do.
        """
        threads, known = _count(), self._threads
        if threads != known:
            self._threads, self._known = threads, frozenset(threading.enumerate())
            if threads > known:
                self._came = now
        asked, rested = self._asked, self._rested
        self._asked, self._rested = now, 0.0
        # Between two quick jobs only another thread can start one, even one that belongs to the set-up.
        paused = now - rested < _SHORT_PAUSE and threads <= _OURS
        too_short = (rested if paused else now) - asked < _QUICKEST_FORK
        if not too_short and (now - self._listed >= _OFTEN if self._children else has_children()):
            self._list_children(now)
        return now - self._came < NEW

    def goes_on(self) -> bool:
        """Whether something that the run which has just ended has started is still at work: a thread of Python, or a
        process. A thread of an executor that waits for work is not.
        """
        if an_executor_is_at_work():
            return True
        frames = sys._current_frames()
        for thread in threading.enumerate():
            innermost = frames.get(thread.ident or 0)
            if thread not in self._known and innermost is not None and innermost.f_code is not _EXECUTOR:
                return True
        return bool((_children() or frozenset()) - self._children)

    def dangerous_for(self, now: float) -> float:
        """Seconds until the newest leftover has had time to do its harm."""
        return max(0.0, self._came + HARMLESS_AFTER - now) if self.new(now) else 0.0

    def _list_children(self, now: float) -> None:
        children = _children()
        self._listed = now
        if children is not None:
            if children - self._children:
                self._came = now
            self._children = children


def an_executor_is_at_work() -> bool:
    """Whether a thread of an executor of `concurrent.futures` has work."""
    return any(map(_is_at_work, sys._current_frames().values()))


def _is_at_work(innermost: FrameType) -> bool:
    frame: FrameType | None = innermost
    while frame is not None and frame.f_code is not _EXECUTOR:
        frame = frame.f_back
    return frame is not None and frame is not innermost


def has_children() -> bool:
    """One quick system call, which does not reap children that have ended."""
    try:
        waitid(os.P_ALL, 0, _ANY)
    except ChildProcessError:
        return False
    return True


def _children() -> frozenset[int] | None:
    """None if the system does not provide it."""
    found = kernel.children(getpid()) if has_children() else []
    return None if found is None else frozenset(found)
