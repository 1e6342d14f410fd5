"""What jobs leave behind in their worker: threads of Python and processes that they have started.

Either may be intended: a library starts its threads with the first job, a program is kept for the next one. So nothing
is ended here. But after an interruption it may be the interrupted run that goes on.
"""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures.thread import _worker
from os import getpid, waitid
from types import FrameType

from supervisor.system import kernel

_EXECUTOR = _worker.__code__
_ANY = os.WEXITED | os.WNOHANG | os.WNOWAIT


class Leftovers:
    """Created when the handler is set up: what exists by then belongs to no job."""

    def __init__(self) -> None:
        self._threads, self._children = frozenset(threading.enumerate()), _children()

    def go_on(self) -> bool:
        """Whether something that jobs have started is at work: a thread of Python, or a process. A thread of an
        executor that waits for work is not.
        """
        if an_executor_is_at_work():
            return True
        frames = sys._current_frames()
        for thread in threading.enumerate():
            innermost = frames.get(thread.ident or 0)
            if thread not in self._threads and innermost is not None and innermost.f_code is not _EXECUTOR:
                return True
        return bool(_children() - self._children)


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


def _children() -> frozenset[int]:
    """Empty if the system does not list them."""
    return frozenset(kernel.children(getpid()) or ()) if has_children() else frozenset()
