"""Starts and ends the runs of a worker that runs several at the same time."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from contextvars import Context as Variables
from contextvars import copy_context
from dataclasses import KW_ONLY, dataclass
from functools import partial
from inspect import iscoroutine

# Imported by name, as in the executor: a handler that replaces them must not affect the loop.
from time import monotonic
from typing import TYPE_CHECKING, Any

from supervisor.domain.job import Claim, Status
from supervisor.domain.settlement import Settlement, Usage
from supervisor.system import signals
from supervisor.system.forkmark import Mark
from supervisor.system.slot import Cancel, Slot
from supervisor.worker import forked
from supervisor.worker.concurrent import threads
from supervisor.worker.concurrent.run import CURRENT, ConcurrentRun, RunBoard, RunLogs
from supervisor.worker.context import RUN_ENDED, Context, JobInterrupted
from supervisor.worker.event_loop import mark_job
from supervisor.worker.executor import Executor, decoded
from supervisor.worker.fitness import Ruined
from supervisor.worker.loader import Handler
from supervisor.worker.recorder import WORTH
from supervisor.worker.slot_board import SlotBoard

if TYPE_CHECKING:
    from supervisor.config import PoolSettings


@dataclass(eq=False)
class ConcurrentRunner:
    """`runs` are all that have begun and whose end is not noted yet, by job and token; `finished` are those of them
    that have ended. `ended` is called with each end, and `reported` with each report of progress, in any thread.
    Created in the main thread, when the handler is set up.
    """

    pool: PoolSettings
    slot: Slot
    handler: Handler
    executor: Executor
    board: SlotBoard
    logs: RunLogs
    log: Any
    mark: Mark
    _: KW_ONLY
    own_thread: Callable[[], None]
    ended: Callable[[], None]
    reported: Callable[[], object]

    def __post_init__(self) -> None:
        self.runs: dict[tuple[int, int], ConcurrentRun] = {}
        self.finished: deque[ConcurrentRun] = deque()
        self._loop = self.handler.event_loop
        self._main = threading.get_ident()
        self._variables = copy_context()
        self._threads = threads.JobThreads(self.own_thread)
        self._showing = threading.Lock()
        self._shown: ConcurrentRun | None = None
        self._running = self._ended = 0  # runs; changed under the lock
        middleware = self.executor.middleware
        self._around = None if middleware is None else middleware.around(self._inside)
        self.handler.on_shared_loop = self._wait_for_awaitable
        self._doubtful = False
        self._left = False
        self._calls: deque[Callable[[], None]] = deque()
        self._may_have_left: set[ConcurrentRun] = set()

    # The main thread

    def serve(self) -> None:
        """Run the event loop until `leave`. Raises Ruined if a job has broken it."""
        while not self._left:
            try:
                self._loop.serve()
            except BaseException as error:
                if not self.mark[0]:
                    forked.end()
                if isinstance(error, Exception):  # the loop is broken: what a job raises there ends in the loop
                    raise Ruined(f"a handler has broken the event loop: {error}") from None
                self.log.warning("event_loop_interrupted", error=repr(error))  # raised by what a job has started
            if not self.mark[0]:
                forked.end()
            while self._calls:
                self._calls.popleft()()

    def leave(self) -> None:
        self._left = True
        self._loop.pause()

    def detach(self) -> None:
        """In a process that a handler has forked: the other jobs are not its own."""
        if threading.get_ident() == self._main:
            self._loop.detach()

    def in_main(self, call: Callable[[], None], patience: float) -> bool:
        """Have the main thread do this outside of the event loop. False if it did not begin to in time. Raises what
        `call` raises.
        """
        permit, done, errors = deque([True]), threading.Event(), deque[BaseException]()

        def called() -> None:
            try:
                if permit:
                    permit.pop()
                    call()
            except BaseException as error:
                errors.append(error)
            finally:
                done.set()

        self._calls.append(called)
        self._loop.pause()
        if not done.wait(patience) and permit:
            permit.clear()
            return False
        done.wait()
        if errors:
            raise errors[0]
        return True

    def restore_loop(self) -> None:
        self._loop.restore()
        if self._loop.changes is not None:
            self.handler.changes, self._loop.changes = self._loop.changes, None

    def timed_out(self, claim: Claim) -> bool:
        return self.runs[claim.job_id, claim.token].stopped_for is Cancel.TIMEOUT

    def interrupt_main(self) -> None:
        """On a signal: if a run is to stop and does not return to the event loop, stop it here."""
        run = CURRENT.get()
        if run is not None and run.stopped_for is not Cancel.NONE and run.take_permit():
            run.interrupted = True
            raise JobInterrupted

    # Begin

    def start(self, claims: Iterable[Claim], together: Callable[[Claim], int], *, doubtful: bool) -> None:
        """`together` gives the number of jobs that may run beside each of them, itself included."""
        now, at, alone = monotonic(), self.executor.clock(), not self.runs
        new: dict[tuple[int, int], ConcurrentRun] = {}
        self._doubtful = doubtful and alone
        for claim in claims:
            run = ConcurrentRun(
                claim, now, at, self.pool.timeout_of(claim.type), together(claim), self.pool.cancel_grace
            )
            run.ctx = self.executor.context(claim, RunBoard(self.board, run, self.show, self._told))
            run.on_loop = self.handler.is_async(claim.type)
            self.logs.begin(run, alone=alone)
            new[claim.job_id, claim.token] = run
            alone = False
        with self._showing:
            self._running += len(new)
            self.runs.update(new)
        self.show()  # before anything can happen to them
        on_loop = [run for run in new.values() if run.on_loop and self._around is None]
        if on_loop:
            self._loop.raw.call_soon_threadsafe(self._start_tasks, on_loop, context=Variables())
        for run in new.values():
            if run not in on_loop:
                self._start_thread(run)

    def _start_tasks(self, runs: Iterable[ConcurrentRun]) -> None:
        for run in runs:
            run.task = self._context(run).run(self._loop.raw.create_task, self._on_loop(run))

    def _start_thread(self, run: ConcurrentRun) -> None:
        try:
            self._threads.run(partial(self._context(run).run, self._in_thread, run))
        except RuntimeError as error:  # the system allows no more threads
            self._end(run, error)

    def _context(self, run: ConcurrentRun) -> Variables:
        context = self._variables.copy()
        context.run(CURRENT.set, run)
        mark_job(context)
        return context

    async def _on_loop(self, run: ConcurrentRun) -> None:
        try:
            payload = decoded(run.claim.payload)
        except Exception as error:
            self._end(run, error)
        else:
            self._end(run, await self._awaited(run, partial(self.handler.awaitable, payload, run.ctx)))

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
        if not self.mark[0]:
            forked.end(value if isinstance(value, BaseException) else None)
        if isinstance(value, asyncio.CancelledError) and run.stopped_for is not Cancel.NONE:
            value = JobInterrupted().with_traceback(value.__traceback__)
        if not self._may_have_left:  # once for all that end in the same turn of the loop
            self._loop.raw.call_soon(self._end_leftovers, context=Variables())
        self._may_have_left.add(run)
        return value

    def _in_thread(self, run: ConcurrentRun) -> None:
        run.thread = run.waits_in = threading.get_ident()
        handle = self._around or self.handler.handle
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
        self._end(run, value)
        value = None  # or an error would keep this frame, and this frame the error

    def _inside(self, payload: Any, ctx: Context) -> Any:
        """In a thread, inside the middleware, whose variables the handler sees. The middleware may have changed the
        thread, and then what is executed there does not belong to the run yet.
        """
        if CURRENT.get() is None:
            variables = copy_context()
            variables.run(CURRENT.set, self.runs[ctx.job_id, ctx.token])
            mark_job(variables)
            return variables.run(self._inside, payload, ctx)
        if self.handler.is_async(ctx.type):
            return self._wait_for_loop(partial(self.handler.awaitable, payload, ctx))
        return self.handler.handle(payload, ctx)

    def _wait_for_awaitable(self, awaitable: Awaitable[Any]) -> Any:
        """In the thread of a run whose function has returned this. From now on it is interrupted on the event loop."""
        run = CURRENT.get()
        assert run is not None
        if not self.mark[0]:
            forked.end()
        if not run.take_thread_permit():  # it is being interrupted, or has ignored that
            if iscoroutine(awaitable):
                awaitable.close()
            raise JobInterrupted
        run.on_loop = True
        return self._wait_for_loop(lambda: awaitable)

    def _wait_for_loop(self, call: Callable[[], Awaitable[Any]]) -> Any:
        run, ended = CURRENT.get(), Future[Any]()
        assert run is not None

        async def awaited() -> None:
            ended.set_result(await self._awaited(run, call))

        def start() -> None:
            run.task = variables.run(self._loop.raw.create_task, awaited())
            if run.stopped_for is not Cancel.NONE:  # while it was handed over
                self._cancel(run)

        variables = copy_context()
        self._loop.raw.call_soon_threadsafe(start, context=Variables())
        value = ended.result()
        if isinstance(value, BaseException):
            raise value
        return value

    # End

    def _end(self, run: ConcurrentRun, value: Any) -> None:
        """Its handler has returned this, or has raised it."""
        if not self.mark[0]:
            forked.end(value if isinstance(value, BaseException) else None)
        run.ctx._board = RUN_ENDED
        try:
            settlement = self.executor.outcome(run.claim, run.ctx, value, run.started_at)
        except BaseException as error:  # an exception may be anything, even when it is described
            why = RuntimeError(f"describing its failure raised {type(error).__name__}")
            settlement = self.executor.outcome(run.claim, run.ctx, why, run.started_at)
        run.settlement = self._recorded(run, settlement)
        self._show_end(run)
        self.finished.append(run)
        self.ended()

    def _recorded(self, run: ConcurrentRun, settlement: Settlement) -> Settlement:
        """With what is known of the run alone: the CPU time and the memory are those of all of them."""
        duration, said = max(0.0, self.executor.clock() - run.started_at), self.logs.end(run)
        if settlement.status is Status.PENDING and settlement.failure is None:
            return settlement
        if settlement.simple and duration < WORTH and said is None:
            return settlement
        return settlement._replace(usage=Usage(run.started_at, duration, log=said))

    def _end_leftovers(self) -> None:
        """What runs have left on the event loop ends with them."""
        ended, self._may_have_left = self._may_have_left, set()
        for task in asyncio.all_tasks(self._loop.raw):
            if not task.done() and (run := _run_of(task)) in ended and run is not None and task is not run.task:
                task.cancel()
        for handle in list(getattr(self._loop.raw, "_scheduled", ())):
            if not handle.cancelled() and handle._context.get(CURRENT) in ended:
                handle.cancel()

    # What is shown, and limits

    def _show_end(self, run: ConcurrentRun) -> None:
        """At once: it may take long until its outcome is written, and until then it must not be taken to run."""
        with self._showing:
            run.ended = True
            self._running -= 1
            self._ended += 1
            if run is self._shown:
                self.slot.work.extend(0.0)  # its limit is over; the next one is shown in a moment
            self.slot.work.end(self._ended, (run.claim.job_id, run.claim.token), self._running)

    @property
    def shows_ended(self) -> bool:
        """Whether the slot shows a run that has ended."""
        return self._shown is not None and self._shown.ended

    def show(self) -> None:
        """Show the run that must end first in the slot; the supervisor kills the worker if it does not."""
        with self._showing:
            runs = [run for run in list(self.runs.values()) if not run.ended]
            first = min(runs, key=_must_end, default=None)
            work = self.slot.work
            if first is not self._shown:
                work.forget_progress()
            self._shown = first
            if first is None:
                work.show((0, 0, 0.0, 0.0), 0, doubtful=False)
                return
            claim, doubtful = first.claim, self._doubtful and len(runs) == 1
            work.show((claim.job_id, claim.token, first.started, first.deadline), len(runs), doubtful=doubtful)
            if first.progress is not None:
                work.progress(*first.progress)

    def _told(self, run: ConcurrentRun) -> None:
        if run is self._shown and run.progress is not None:
            self.slot.work.progress(*run.progress)
        self.reported()

    def stop(self, run: ConcurrentRun, why: Cancel) -> bool:
        """Interrupt a run, once. False if it has not begun yet. Called by one thread."""
        if not (run.task if run.on_loop else run.thread):
            return False
        run.stopped_for = why
        run.interrupted = bool(self.pool.gpus)  # what an async handler has begun on a device goes on, too
        if not run.on_loop and threads.interrupt(run):
            run.interrupted = True
            return True
        self._loop.raw.call_soon_threadsafe(self._cancel, run, context=Variables())
        # If it does not return to the event loop, only a signal reaches it.
        signal.pthread_kill(self._main, signals.INTERRUPT)
        return True

    def _cancel(self, run: ConcurrentRun) -> None:
        if run.task is not None and run.take_permit():
            run.task.cancel()


def _must_end(run: ConcurrentRun) -> float:
    return run.must_end


def _run_of(task: asyncio.Task[Any]) -> ConcurrentRun | None:
    """Decided by the context it runs in. Before Python 3.12 only the future that it waits for shows that."""
    if hasattr(task, "get_context"):
        found: ConcurrentRun | None = task.get_context().get(CURRENT)
        return found
    callbacks = getattr(getattr(task, "_fut_waiter", None), "_callbacks", None)
    runs = [context.get(CURRENT) for _, context in callbacks or ()]
    return next((run for run in runs if run is not None), None)
