"""The threads of handlers that are not async. A thread is used again, so that what a handler keeps per thread lasts."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from time import sleep

from supervisor.worker.context import JobInterrupted
from supervisor.worker.runners.concurrent.run import ConcurrentRun


class JobThreads:
    """As many as are used at the same time. `started` is called for each new one."""

    def __init__(self, started: Callable[[], None]) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._free: deque[bool] = deque()
        self._started = started
        self._count = 0

    def run(self, call: Callable[[], None]) -> None:
        """Called by one thread. `call` must not raise. Raises RuntimeError if the system allows no more threads."""
        try:
            self._free.pop()
        except IndexError:
            threading.Thread(target=self._serve, name=f"jobs-{self._count + 1}", daemon=True).start()
            self._count += 1
            self._started()
        self._calls.put(call)

    def _serve(self) -> None:
        while True:
            call = self._calls.get()
            call()
            del call  # and with it, the payload
            self._free.append(True)


def interrupt(run: ConcurrentRun) -> bool:
    """Raise JobInterrupted in the thread of this run, unless it has ended there. It is raised at the next instruction
    of Python; a call that waits in the system is not ended by it.
    """
    if not run.take_thread_permit():
        return False
    _raise_in(run.thread, JobInterrupted)
    run.thread = 0  # sent
    return True


def seal(run: ConcurrentRun) -> None:
    """Called by the thread of a run when its handler has ended: afterwards, it is not interrupted any more.

    May raise the JobInterrupted that was under way. Call it again then.
    """
    if run.take_thread_permit():
        return
    own = threading.get_ident()
    while run.thread:
        sleep(0.001)
    _raise_in(own, None)  # if the handler has not had it yet


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    import ctypes  # imported here: it is rarely needed

    raised = ctypes.c_void_p(0) if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)
