"""Runs database calls on a few threads, each with its own connection."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from supervisor.domain.errors import StoreBusy, StoreError
from supervisor.domain.job import NewJob
from supervisor.store.base import Engine, Operations

Answer = TypeVar("Answer")
Task = tuple[Callable[[Callable[[], Operations]], Any], "Future[Any]"]

THREADS = 3  # a slow call must not delay the others; more threads would only wait for the CPU
FAREWELL = 1.0  # seconds that closing waits for calls in progress


class StoreExecutor:
    """Runs database calls for the event loop. Threads and connections are created at the first call."""

    def __init__(self, engine: Engine, threads: int = THREADS) -> None:
        self.engine = engine
        self._most = threads
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._threads: list[_StoreThread] = []
        self._open: list[Future[Any]] = []
        self._closed = False

    async def ask(self, question: Callable[[Operations], Answer]) -> Answer:
        """What `question` returns. Raises StoreError if the database cannot be used, and what it raises itself."""

        def answered(operations: Callable[[], Operations]) -> Answer:
            found = operations()
            found.check()  # an open connection would still read a deleted file
            return question(found)

        return await self._later(answered)

    async def put(self, job: NewJob) -> tuple[int, bool]:
        """Insert a job as any other program does: when it returns, the job survives a power loss.

        Returns its id and whether it is new. Raises StoreError.
        """

        def put(_: object) -> tuple[int, bool]:
            with closing(self.engine.producer(create=False)) as producer:
                return producer.put(job)

        return await self._later(put)

    def close(self) -> None:
        """Close the connections. A thread that hangs in a call keeps its connection and is not waited for."""
        self._closed = True
        while True:
            try:
                task = self._tasks.get_nowait()
            except Empty:
                break
            if task is not None:
                task[1].cancel()
        for _ in self._threads:
            self._tasks.put(None)
        deadline = time.monotonic() + FAREWELL
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    async def _later(self, task: Callable[[Callable[[], Operations]], Answer]) -> Answer:
        if self._closed:
            raise StoreError("the admin process is about to end")
        future: Future[Answer] = Future()
        self._open = [other for other in self._open if not other.done()]
        if len(self._open) >= len(self._threads) < self._most:
            thread = _StoreThread(self.engine, self._tasks, len(self._threads))
            thread.start()
            self._threads.append(thread)
        self._open.append(future)
        self._tasks.put((task, future))
        return await asyncio.wrap_future(future)


class _StoreThread(threading.Thread):
    """A thread that runs one call after another, and closes its connection in the thread that opened it.

    The threads of an executor cannot close a connection when they end, and a connection that is left to the garbage
    collector may keep the database's files open.
    """

    def __init__(self, engine: Engine, tasks: SimpleQueue[Task | None], number: int) -> None:
        super().__init__(name=f"store_{number}", daemon=True)
        self._engine = engine
        self._tasks = tasks
        self._operations: Operations | None = None

    def run(self) -> None:
        try:
            while (task := self._tasks.get()) is not None:
                self._answer(*task)
                del task  # free the task before waiting for the next one
        finally:
            self._forget()

    def _answer(self, task: Callable[[Callable[[], Operations]], Any], future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(task(self._opened))
        except BaseException as error:
            if isinstance(error, StoreError) and not isinstance(error, StoreBusy):
                self._forget()  # the file may have been replaced
            future.set_exception(error)
        finally:
            del task, future  # break the reference cycle through the error's traceback

    def _opened(self) -> Operations:
        if self._operations is None:
            self._operations = self._engine.operations()
        return self._operations

    def _forget(self) -> None:
        operations, self._operations = self._operations, None
        if operations is not None:
            operations.close()
