"""The event loop of a worker's async handlers: one for the worker's whole life, restored after each job."""

from __future__ import annotations

# Imported by name: the clean-up must not use what a handler has replaced.
from asyncio import (
    AbstractEventLoop,
    Future,
    Handle,
    all_tasks,
    ensure_future,
    gather,
    new_event_loop,
    sleep,
    tasks,
    wait,
)
from collections import deque
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from supervisor.worker.context import JobInterrupted

_MOMENT = 1.0  # seconds in which tasks that a job has left running must end when they are cancelled
_ROUNDS = 3  # a task that ends may leave another one behind
_JOB = "job"  # the run, where there is one at a time
_EXITS = 20  # exceptions that leftovers may raise through the loop meanwhile

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
    stays. A loop in which a job has changed more is not used again: the worker is replaced. If it had a run of its own
    there, it is closed: `lost`.
    """

    def __init__(self) -> None:
        self._loop = new_event_loop()
        self._run_forever, self._stop_it = type(self._loop).run_forever, type(self._loop).stop
        self._found: _Found | None = None
        self.changed = False
        self.lost = False

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """For the set-up and the teardown: what is left on the loop stays there."""
        return self._finish(ensure_future(awaitable, loop=self._loop))

    def run_job(self, awaitable: Awaitable[Any]) -> Any:
        """Run it, then end what it has left."""
        if self._found is None:
            self._found = _Found(self._loop)
        mark = CURRENT.set(_JOB)
        try:
            return self._finish(ensure_future(awaitable, loop=self._loop))
        finally:
            CURRENT.reset(mark)
            if self._found.differs():
                self._end_leftovers(self._found)

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
        if self._found is None:
            self._found = _Found(self._loop)
        leftovers: list[Future[Any] | Handle] = [*self._found.left_tasks(), *self._found.left_timers()]
        for leftover in leftovers:
            leftover.cancel()
        if self._found.is_changed():
            self.changed = True

    def detach(self) -> None:
        """In a process that a job has forked: run nothing of the other jobs."""
        getattr(self._loop, "_ready", deque()).clear()
        with suppress(Exception):
            self._stop_it(self._loop)

    def close(self) -> None:
        with suppress(Exception):  # a handler may have broken it
            type(self._loop).close(self._loop)

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

    def _end_leftovers(self, found: _Found) -> None:
        """Give up a loop that does not become what it was."""
        try:
            self._let_run(())  # connections that are being closed need one or two iterations
            for _ in range(_ROUNDS):
                tasks, timers = found.left_tasks(), found.left_timers()
                if not tasks and not timers:
                    break
                for timer in timers:
                    timer.cancel()
                for task in tasks:
                    task.cancel()
                self._let_run(tasks)
            whole = not found.differs()
        except JobInterrupted:  # something it left running does not stop
            self._give_up()
            raise
        except BaseException:
            whole = False
        if not whole:
            self._give_up()

    def _give_up(self) -> None:
        self.changed = True
        self.lost = True
        self.close()

    def _let_run(self, tasks: Iterable[Future[Any]]) -> None:
        """Run the loop until these have ended, or the time for leftovers is over."""
        turns = ensure_future(_turns(tasks), loop=self._loop)
        for _ in range(_EXITS):
            try:
                self._until_done(turns)
                break
            except JobInterrupted:
                raise
            except BaseException:  # noqa: S112 - raised by a leftover; nothing reads it
                continue


async def _turns(tasks: Iterable[Future[Any]]) -> None:
    if tasks:
        await wait(tasks, timeout=_MOMENT)
    for _ in range(3):
        await sleep(0)


class _Found:
    """The state of the loop when the first job came, and how it differs from that now.

    Loops other than Python's own show less; what cannot be seen is taken to be unchanged.
    """

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._ready, self._scheduled = getattr(loop, "_ready", ()), getattr(loop, "_scheduled", ())
        self._selector = getattr(loop, "_selector", None)
        self._attributes: dict[str, Any] = getattr(loop, "__dict__", {})
        self._names = set(self._attributes)
        self._tasks = all_tasks(loop)
        self._factory, self._handler = loop.get_task_factory(), loop.get_exception_handler()
        self._debug = loop.get_debug()

    def differs(self) -> bool:
        """Costs a few microseconds."""
        return (
            self.is_changed()
            or any(map(_is_left, self._ready))
            or any(map(_is_left, self._scheduled))
            or (_may_have_tasks() and bool(self.left_tasks()))
        )

    def is_changed(self) -> bool:
        """Whether jobs have changed the loop itself, or ended what the set-up has started."""
        loop = self._loop
        return (
            loop.get_task_factory() is not self._factory
            or loop.get_exception_handler() is not self._handler
            or loop.get_debug() is not self._debug
            or loop.is_closed()
            or getattr(loop, "_executor_shutdown_called", False)
            or getattr(getattr(loop, "_default_executor", None), "_shutdown", False)
            or getattr(loop, "_ready", self._ready) is not self._ready
            or getattr(loop, "_scheduled", self._scheduled) is not self._scheduled
            or getattr(loop, "_selector", None) is not self._selector
            or any(task.cancelled() for task in self._tasks)
            or (len(self._attributes) != len(self._names) and self._has_own_methods())
        )

    def _has_own_methods(self) -> bool:
        """Whether some were replaced. Some versions of Python set other attributes when the loop first runs."""
        new = self._attributes.keys() - self._names
        self._names |= {name for name in new if not hasattr(type(self._loop), name)}
        return len(self._attributes) != len(self._names)

    def left_tasks(self) -> list[Future[Any]]:
        """The tasks of jobs. A task started in the meantime by a task of the set-up belongs to the set-up."""
        return [task for task in all_tasks(self._loop) if task not in self._tasks and self._is_of_a_job(task)]

    def left_timers(self) -> list[Handle]:
        return [handle for handle in self._scheduled if _is_left(handle)]

    def _is_of_a_job(self, task: Future[Any]) -> bool:
        if hasattr(task, "get_context") or getattr(getattr(task, "_fut_waiter", None), "_callbacks", None):
            return run_of(task) is not None
        return not self._tasks  # a task that waits for nothing runs in the next iteration; then it has ended, or waits


def _may_have_tasks() -> bool:
    """False if Python's own set of all tasks is empty, which is faster to check than to list them."""
    found = getattr(tasks, "_scheduled_tasks", getattr(tasks, "_all_tasks", None))
    return found is None or len(found) > 0


def _is_left(handle: Handle) -> bool:
    return handle._context.get(CURRENT) is not None and not handle._cancelled  # type: ignore[attr-defined]
