"""Calls the handler for each run of a worker that runs several at the same time, and interrupts it there."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future, wait
from contextvars import Context as Variables
from contextvars import copy_context
from functools import partial
from inspect import iscoroutine
from queue import SimpleQueue
from time import sleep
from typing import Any

from supervisor.system import signals
from supervisor.system.slot import Cancel
from supervisor.worker import forked
from supervisor.worker.context import Context, JobInterrupted
from supervisor.worker.event_loop import CURRENT, EventLoop, run_of
from supervisor.worker.executor import Executor, decoded
from supervisor.worker.fitness import Ruined
from supervisor.worker.handler import Handler
from supervisor.worker.runners.concurrent.run import ConcurrentRun

Ended = Callable[[ConcurrentRun, Any], None]


class Calls:
    """On the event loop if the handler is async, otherwise in a thread: in one, too, if there is middleware around it.

    `ended` is called with what each run has returned, or raised, in any thread. `uses_device`: what an
    interrupted run has begun there goes on. Created in the main thread.
    """

    def __init__(
        self,
        handler: Handler,
        executor: Executor,
        ended: Ended,
        *,
        uses_device: bool,
    ) -> None:
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
        in_threads: list[ConcurrentRun] = []
        for run in runs:
            run.on_loop = self._handler.is_async(run.claim.type)
            (on_loop if run.on_loop and self._around is None else in_threads).append(run)
        if on_loop:
            self._loop.call_soon_threadsafe(self._start_tasks, on_loop, context=Variables())
        for run in in_threads:
            try:
                self._threads.run(partial(self._context(run).run, self._in_thread, run))
            except RuntimeError as error:  # the system allows no more threads
                self._ended(run, error)

    def stop(self, run: ConcurrentRun, why: Cancel) -> bool:
        """Interrupt a run, once. False if it has not begun yet. Called by one thread."""
        if not (run.task if run.on_loop else run.thread):
            return False
        run.stopped_for = why
        run.interrupted = self._uses_device
        if not run.on_loop and interrupt(run):
            run.interrupted = True
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
        forked.leave(value if isinstance(value, BaseException) else None)
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
        run.thread = run.waits_in = threading.get_ident()
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
        if CURRENT.get() is None:
            variables = copy_context()
            variables.run(CURRENT.set, ctx._board.run)  # type: ignore[attr-defined]
            return variables.run(self._inside, payload, ctx)
        if self._handler.is_async(ctx.type):
            return self._wait_for_loop(partial(self._handler.awaitable, payload, ctx))
        return self._handler.handle(payload, ctx)

    def wait_for_awaitable(self, awaitable: Awaitable[Any]) -> Any:
        """In the thread of a run whose function has returned this. From now on it is interrupted on the event loop."""
        run: ConcurrentRun = CURRENT.get()
        forked.leave()
        if not run.take_thread_permit():  # it is being interrupted, or has ignored that
            if iscoroutine(awaitable):
                awaitable.close()
            raise JobInterrupted
        run.on_loop = True
        return self._wait_for_loop(lambda: awaitable)

    def _wait_for_loop(self, call: Callable[[], Awaitable[Any]]) -> Any:
        run: ConcurrentRun = CURRENT.get()
        ended = Future[Any]()

        async def awaited() -> None:
            ended.set_result(await self._awaited(run, call))

        def start() -> None:
            run.task = variables.run(self._loop.create_task, awaited())
            if run.stopped_for is not Cancel.NONE:  # while it was handed over
                self._cancel(run)

        variables = copy_context()
        self._loop.call_soon_threadsafe(start, context=Variables())
        value = ended.result()
        if isinstance(value, BaseException):
            raise value
        return value


class MainThread:
    """Created in the main thread."""

    def __init__(self, loop: EventLoop, log: Any) -> None:
        self._loop = loop
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
                forked.leave()
                if isinstance(error, Exception):  # the loop is broken: what a job raises there ends in the loop
                    raise Ruined(f"a handler has broken the event loop: {error}") from None
                self._log.warning("event_loop_interrupted", error=repr(error))  # raised by what a job has started
            forked.leave()
            while self._calls:
                self._calls.popleft()()

    def leave(self) -> None:
        self._left = True
        self._loop.pause()

    def call(self, call: Callable[[], None], patience: float) -> None:
        """Have the main thread do this outside of the event loop, unless it does not begin to within these seconds."""
        future = Future[None]()

        def called() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    call()
                    future.set_result(None)
                except BaseException as error:
                    future.set_exception(error)

        self._calls.append(called)
        self._loop.pause()
        wait([future], patience)
        if not future.cancel():
            future.result()

    def detach(self) -> None:
        """In a process that a handler has forked: the other jobs are not its own."""
        if threading.get_ident() == self._ident:
            self._loop.detach()


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
