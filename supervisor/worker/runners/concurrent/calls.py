"""Calls the handler for each run of a worker that runs several at the same time, and interrupts it there."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from contextvars import Context as Variables
from contextvars import copy_context
from functools import partial
from inspect import iscoroutine
from typing import Any

from supervisor.system import signals
from supervisor.system.slot import Cancel
from supervisor.worker import forked
from supervisor.worker.context import Context, JobInterrupted
from supervisor.worker.event_loop import CURRENT, run_of
from supervisor.worker.executor import Executor, decoded
from supervisor.worker.handler import Handler
from supervisor.worker.runners.concurrent import threads
from supervisor.worker.runners.concurrent.run import ConcurrentRun

Ended = Callable[[ConcurrentRun, Any], None]


class Calls:
    """On the event loop if the handler is async, otherwise in a thread: in one, too, if there is middleware around it.

    `ended` is called with what each run has returned, or raised, in any thread. `own_thread` is called for each thread
    that is started. `uses_device`: what an interrupted run has begun there goes on. Created in the main thread.
    """

    def __init__(
        self,
        handler: Handler,
        executor: Executor,
        ended: Ended,
        own_thread: Callable[[], None],
        *,
        uses_device: bool,
    ) -> None:
        self._handler = handler
        self._mark = executor.mark
        self._around = None if executor.middleware is None else executor.middleware.around(self._inside)
        self._ended = ended
        self._uses_device = uses_device
        self._loop = handler.event_loop.raw
        self._main = threading.get_ident()
        self._variables = copy_context()
        self._threads = threads.JobThreads(own_thread)
        self._may_have_left: set[ConcurrentRun] = set()
        handler.on_shared_loop = self._wait_for_awaitable

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
        if not run.on_loop and threads.interrupt(run):
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
        if not self._mark[0]:
            forked.end(value if isinstance(value, BaseException) else None)
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
                threads.seal(run)
            except JobInterrupted as error:  # raised only once
                value = error
                threads.seal(run)
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

    def _wait_for_awaitable(self, awaitable: Awaitable[Any]) -> Any:
        """In the thread of a run whose function has returned this. From now on it is interrupted on the event loop."""
        run: ConcurrentRun = CURRENT.get()
        if not self._mark[0]:
            forked.end()
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
