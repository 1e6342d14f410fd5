"""How the handler is called for a run among several, on the event loop or in a thread, and interrupted there."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from contextvars import Context as Variables
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from time import sleep
from typing import Any

from supervisor.system import signals
from supervisor.system.slot import Cancel
from supervisor.worker import returned_fork
from supervisor.worker.context import Context, JobInterrupted
from supervisor.worker.event_loop import CURRENT, run_of
from supervisor.worker.executor import Executor, decoded
from supervisor.worker.handler import Handler
from supervisor.worker.runners.concurrent.runs import ConcurrentRun

Ended = Callable[[ConcurrentRun, Any], None]


class Calls:
    """On the event loop if the handler is async, otherwise in a thread: in one, too, if there is middleware around it.

    `ended` is called with what each run has returned, or raised, in any thread. `uses_device`: what an
    interrupted run has begun there goes on. Created in the main thread.
    """

    def __init__(self, handler: Handler, executor: Executor, ended: Ended, *, uses_device: bool) -> None:
        self._handler = handler
        self._around = None if executor.middleware is None else executor.middleware.around(self._inside)
        self._ended = ended
        self._uses_device = uses_device
        self._loop = handler.event_loop.raw
        self._main = threading.get_ident()
        self._variables = copy_context()
        self._threads = JobThreads()
        self._may_have_left: set[ConcurrentRun] = set()

    def begin(self, runs: Iterable[ConcurrentRun]) -> None:
        on_loop: list[ConcurrentRun] = []
        for run in runs:
            run.on_loop = self._handler.is_async(run.claim.type)
            if run.on_loop and self._around is None:
                on_loop.append(run)
                continue
            try:
                self._threads.run(partial(self._context(run).run, self._in_thread, run))
            except RuntimeError as error:  # the system allows no more threads
                self._ended(run, error)
        if on_loop:
            self._loop.call_soon_threadsafe(self._start_tasks, on_loop, context=Variables())

    def stop(self, run: ConcurrentRun, why: Cancel) -> bool:
        """Interrupt a run, once. False if it has not begun yet. Called by one thread."""
        if not (run.task if run.on_loop else run.thread):
            return False
        run.stopped_for = why
        run.interrupted = self._uses_device
        if not run.on_loop:
            run.interrupted = interrupt(run) or run.interrupted
            return True
        self._loop.call_soon_threadsafe(self._cancel, run, context=Variables())
        # If it does not return to the event loop, only a signal reaches it.
        signal.pthread_kill(self._main, signals.INTERRUPT)
        return True

    def interrupt(self) -> None:
        """On a signal, in the main thread: if a run is to stop and does not return to the event loop, stop it here."""
        run: ConcurrentRun | None = CURRENT.get()
        if run is not None and run.stopped_for is not Cancel.NONE and run.take_permit():
            run.interrupted = True
            raise JobInterrupted

    def _cancel(self, run: ConcurrentRun) -> None:
        if run.task is not None and run.take_permit():
            run.task.cancel()

    def _context(self, run: ConcurrentRun) -> Variables:
        context = self._variables.copy()
        context.run(CURRENT.set, run)
        return context

    # On the event loop

    def _start_tasks(self, runs: Iterable[ConcurrentRun]) -> None:
        for run in runs:
            run.task = self._context(run).run(self._loop.create_task, self._on_loop(run))

    async def _on_loop(self, run: ConcurrentRun) -> None:
        try:
            payload = decoded(run.claim.payload)
        except Exception as error:
            self._ended(run, error)
        else:
            self._ended(run, await self._awaited(run, partial(self._handler.awaitable, payload, run.ctx)))

    async def _awaited(self, run: ConcurrentRun, call: Callable[[], Awaitable[Any]]) -> Any:
        """What the handler returns, or raises, as a value."""
        try:
            value = await call()
        except BaseException as error:
            value = error
        try:
            run.take_permit()
        except JobInterrupted as error:  # raised by the signal just now, and only once
            value = error
        returned_fork.leave(value if isinstance(value, BaseException) else None)
        if isinstance(value, asyncio.CancelledError) and run.stopped_for is not Cancel.NONE:
            value = JobInterrupted().with_traceback(value.__traceback__)
        if not self._may_have_left:  # once for all that end in the same turn of the loop
            self._loop.call_soon(self._end_leftovers, context=Variables())
        self._may_have_left.add(run)
        return value

    def _end_leftovers(self) -> None:
        """What runs have left on the event loop ends with them."""
        ended, self._may_have_left = self._may_have_left, set()
        for task in asyncio.all_tasks(self._loop):
            if not task.done() and (run := run_of(task)) in ended and task is not run.task:
                task.cancel()
        for handle in list(getattr(self._loop, "_scheduled", ())):
            if not handle.cancelled() and handle._context.get(CURRENT) in ended:
                handle.cancel()

    # In a thread

    def _in_thread(self, run: ConcurrentRun) -> None:
        run.thread = threading.get_ident()
        handle = self._around or self._handler.handle
        try:
            value = handle(decoded(run.claim.payload), run.ctx)
        except BaseException as error:
            value = error
        if not run.on_loop:
            try:
                seal(run)
            except JobInterrupted as error:  # raised only once
                value = error
                seal(run)
        self._ended(run, value)
        value = None  # or an error would keep this frame, and this frame the error

    def _inside(self, payload: Any, ctx: Context) -> Any:
        """In a thread, inside the middleware, whose variables the handler sees. The middleware may have changed the
        thread, and then what is executed there does not belong to the run yet.
        """
        run = ctx._board
        assert isinstance(run, ConcurrentRun)
        variables = copy_context()
        variables.run(CURRENT.set, run)
        if not run.on_loop:
            return variables.run(self._handler.handle, payload, ctx)
        ended = Future[Any]()

        async def awaited() -> None:
            ended.set_result(await self._awaited(run, partial(self._handler.awaitable, payload, ctx)))

        def start() -> None:
            run.task = variables.run(self._loop.create_task, awaited())

        self._loop.call_soon_threadsafe(start, context=Variables())
        value = ended.result()
        if isinstance(value, BaseException):
            raise value
        return value


class JobThreads:
    """As many as are used at the same time. A thread is used again, so that what a handler keeps per thread
    lasts.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._free: deque[bool] = deque()
        self._count = 0

    def run(self, call: Callable[[], None]) -> None:
        """Called by one thread. `call` must not raise. Raises RuntimeError if the system allows no more threads."""
        try:
            self._free.pop()
        except IndexError:
            threading.Thread(target=self._serve, name=f"jobs-{self._count + 1}", daemon=True).start()
            self._count += 1
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
    if not run.take_permit():
        return False
    _raise_in(run.thread, JobInterrupted)
    run.thread = 0  # sent
    return True


def seal(run: ConcurrentRun) -> None:
    """Called by the thread of a run when its handler has ended: afterwards, it is not interrupted any more.

    May raise the JobInterrupted that was under way. Call it again then.
    """
    if run.take_permit():
        return
    own = threading.get_ident()
    while run.thread:
        sleep(0.001)
    _raise_in(own, None)  # if the handler has not had it yet


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    import ctypes  # imported here: it is rarely needed

    raised = ctypes.c_void_p(0) if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)
