"""The threads in which handlers run: the main one, with the event loop, and those for handlers that are not async."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from time import sleep
from typing import Any, TypeVar

from supervisor.system.mappings import Mark
from supervisor.worker import forked
from supervisor.worker.context import JobInterrupted
from supervisor.worker.event_loop import EventLoop
from supervisor.worker.fitness import Ruined
from supervisor.worker.runners.concurrent.run import ConcurrentRun

Found = TypeVar("Found")


class MainThread:
    """Created in the main thread."""

    def __init__(self, loop: EventLoop, mark: Mark, log: Any) -> None:
        self._loop = loop
        self._mark = mark
        self._log = log
        self._ident = threading.get_ident()
        self._left = False
        self._calls: deque[Callable[[], None]] = deque()

    def serve(self) -> None:
        """Run the event loop until `leave`. Raises Ruined if a job has broken it."""
        while not self._left:
            try:
                self._loop.serve()
            except BaseException as error:
                if not self._mark[0]:
                    forked.end()
                if isinstance(error, Exception):  # the loop is broken: what a job raises there ends in the loop
                    raise Ruined(f"a handler has broken the event loop: {error}") from None
                self._log.warning("event_loop_interrupted", error=repr(error))  # raised by what a job has started
            if not self._mark[0]:
                forked.end()
            while self._calls:
                self._calls.popleft()()

    def leave(self) -> None:
        self._left = True
        self._loop.pause()

    def call(self, call: Callable[[], Found], patience: float) -> Found | None:
        """Have the main thread do this outside of the event loop. None if it does not begin to within these seconds."""
        future = Future[Found]()

        def called() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)

        self._calls.append(called)
        self._loop.pause()
        wait([future], patience)
        return None if future.cancel() else future.result()

    def detach(self) -> None:
        """In a process that a handler has forked: the other jobs are not its own."""
        if threading.get_ident() == self._ident:
            self._loop.detach()


class JobThreads:
    """As many as are used at the same time. A thread is used again, so that what a handler keeps per thread lasts.
    `started` is called for each new one.
    """

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
