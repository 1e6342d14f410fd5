"""The event loop of a worker's async handlers: one for the worker's whole life, restored after each job."""

from __future__ import annotations

from asyncio import (
    AbstractEventLoop,
    Future,
    Handle,
    Task,
    all_tasks,
    ensure_future,
    gather,
    new_event_loop,
    sleep,
    wait,
)
from collections import deque
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from supervisor.worker.context import JobInterrupted

_MOMENT = 1.0  # seconds in which tasks that a job has left running must end when they are cancelled
_JOB = "job"  # the run, where there is one at a time

CURRENT: ContextVar[Any] = ContextVar("current_run", default=None)
"""The run to which belongs what is executed now. Tasks, callbacks and `asyncio.to_thread` inherit it: so it is known
what a run has left on the loop. What the set-up has started, and what that starts, belongs to none.
"""


def run_of(task: Future[Any]) -> Any:
    """The run that has started it. Before Python 3.12 only the future that it waits for shows that."""
    if hasattr(task, "get_context"):
        return task.get_context().get(CURRENT)
    callbacks = getattr(getattr(task, "_fut_waiter", None), "_callbacks", None) or ()
    return next((run for _, context in callbacks if (run := context.get(CURRENT)) is not None), None)


class EventLoop:
    """Runs one awaitable after the other. `changed` tells that a job has changed what cannot be put back.

    What a job leaves on it ends with the job: tasks are cancelled, timers are dropped. What the set-up has started
    stays. A loop on which something of a job goes on, or which a job has made unusable, is not used again: the worker
    is replaced. If the job ran alone there, the loop is closed: `lost`.

    Loops other than Python's own show less of what is left; what cannot be seen is taken not to be there.
    """

    def __init__(self) -> None:
        self._loop = new_event_loop()
        self._run_forever, self._stop_it = type(self._loop).run_forever, type(self._loop).stop
        self._factory: Any = None  # since the first job
        self._known: set[Task[Any]] | None = None  # the tasks of the set-up
        self.changed = False
        self.lost = False

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """For the set-up and the teardown: what is left on the loop stays there."""
        return self._finish(ensure_future(awaitable, loop=self._loop))

    def run_job(self, awaitable: Awaitable[Any]) -> Any:
        """Run it, then end what it has left."""
        self._begin()
        token = CURRENT.set(_JOB)
        try:
            return self._finish(ensure_future(awaitable, loop=self._loop))
        finally:
            CURRENT.reset(token)
            if self._is_changed() or self._has_leftovers():
                self._end_leftovers()

    # For several jobs at the same time. All but `pause` is called in the thread of the loop.

    @property
    def raw(self) -> AbstractEventLoop:
        return self._loop

    def serve(self) -> None:
        """Run until `pause`, or until a job stops it. Raises what a leftover of a job raises through the loop."""
        self._run_forever(self._loop)

    def pause(self) -> None:
        """End `serve`. May be called in any thread."""
        self._loop.call_soon_threadsafe(self._stop_it, self._loop)

    def tidy(self) -> None:
        """No job runs: end what jobs have left, and see what they have changed. Must also be called once before the
        first job.
        """
        self._begin()
        self._cancel_leftovers(self._left_tasks())
        self.changed = self.changed or self._is_changed()

    def detach(self) -> None:
        """In a process that a job has forked: run nothing of the other jobs."""
        getattr(self._loop, "_ready", deque()).clear()
        with suppress(Exception):
            self._stop_it(self._loop)

    def close(self) -> None:
        with suppress(Exception):  # a handler may have broken it
            type(self._loop).close(self._loop)

    def _begin(self) -> None:
        """Before the first job: what is there belongs to the set-up."""
        if self._known is None:
            self._known, self._factory = all_tasks(self._loop), self._loop.get_task_factory()

    def _finish(self, task: Future[Any]) -> Any:
        try:
            return self._until_done(task)
        except BaseException:
            # An interrupted job must not continue in the loop while the next one runs.
            if not task.done():
                task.cancel()
                self._until_done(gather(task, return_exceptions=True))
            raise

    def _until_done(self, task: Future[Any]) -> Any:
        """Like `run_until_complete`, but stopping the loop meanwhile does not end this run."""
        task.add_done_callback(self._stop)
        try:
            while not task.done():
                self._run_forever(self._loop)
        finally:
            if not task.done():
                task.remove_done_callback(self._stop)
        return task.result()

    def _stop(self, task: Future[Any]) -> None:
        self._stop_it(self._loop)

    def _end_leftovers(self) -> None:
        """Give up a loop on which something goes on."""
        try:
            self._let_run(())  # connections that are being closed need one or two iterations
            if self._cancel_leftovers(tasks := self._left_tasks()):
                self._let_run(tasks)
            whole = not (self._is_changed() or self._has_leftovers())
        except BaseException as error:
            whole = False
            if isinstance(error, JobInterrupted):  # something it left running does not stop
                raise
        finally:
            if not whole:
                self.changed = self.lost = True
                self.close()

    def _cancel_leftovers(self, tasks: list[Future[Any]]) -> bool:
        """Cancel these, and the timers. Returns whether there were any."""
        leftovers: list[Future[Any] | Handle] = [*self._left_timers(), *tasks]
        for leftover in leftovers:
            leftover.cancel()
        return bool(leftovers)

    def _let_run(self, tasks: Iterable[Future[Any]]) -> None:
        """Run the loop until these have ended, or the time for leftovers is over. Raises what a leftover raises through
        the loop.
        """
        self._until_done(ensure_future(_turns(tasks), loop=self._loop))

    def _is_changed(self) -> bool:
        """Whether a job has made the loop unusable, or ended what the set-up has started."""
        loop = self._loop
        return (
            loop.is_closed()
            or loop.get_task_factory() is not self._factory
            or getattr(loop, "_executor_shutdown_called", False)
            or getattr(getattr(loop, "_default_executor", None), "_shutdown", False)
            or any(task.cancelled() for task in self._known or ())
        )

    def _has_leftovers(self) -> bool:
        """Costs a few microseconds."""
        return (
            any(map(_is_left, getattr(self._loop, "_ready", ())))
            or bool(self._left_timers())
            or bool(self._left_tasks())
        )

    def _left_tasks(self) -> list[Future[Any]]:
        """The tasks of jobs. A task started in the meantime by a task of the set-up belongs to the set-up."""
        known = self._known or ()
        return [task for task in all_tasks(self._loop) if task not in known and self._is_of_a_job(task)]

    def _left_timers(self) -> list[Handle]:
        return [handle for handle in getattr(self._loop, "_scheduled", ()) if _is_left(handle)]

    def _is_of_a_job(self, task: Future[Any]) -> bool:
        if hasattr(task, "get_context") or getattr(getattr(task, "_fut_waiter", None), "_callbacks", None):
            return run_of(task) is not None
        return not self._known  # a task that waits for nothing runs in the next iteration; then it has ended, or waits


async def _turns(tasks: Iterable[Future[Any]]) -> None:
    if tasks:
        await wait(tasks, timeout=_MOMENT)
    for _ in range(3):
        await sleep(0)


def _is_left(handle: Handle) -> bool:
    return handle._context.get(CURRENT) is not None and not handle._cancelled  # type: ignore[attr-defined]
