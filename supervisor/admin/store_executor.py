"""Runs database calls on a few threads, each with its own connection."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from supervisor.domain.errors import StoreBusy, StoreError
from supervisor.domain.job import NewJob
from supervisor.store.base import Engine, Operations

Answer = TypeVar("Answer")
Call = Callable[[Callable[[], Operations]], Answer]
"""Gets what opens its thread's connection, or returns the open one."""
Tasks = SimpleQueue[tuple[Call[Any], "Future[Any]"] | None]

THREADS = 3  # a slow call must not delay the others; more threads would only wait for the CPU
FAREWELL = 1.0  # seconds that closing waits for calls in progress


class StoreExecutor:
    """Runs database calls for the event loop. Threads and connections are created when they are needed."""

    def __init__(self, engine: Engine, threads: int = THREADS) -> None:
        self.engine = engine
        self._most = threads
        self._tasks: Tasks = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._open: list[Future[Any]] = []
        self._closed = False

    async def ask(self, question: Callable[[Operations], Answer]) -> Answer:
        """What `question` returns. Raises StoreError if the database cannot be used, and what it raises itself."""

        def answered(opened: Callable[[], Operations]) -> Answer:
            operations = opened()
            operations.check()  # an open connection would still read a deleted file
            return question(operations)

        return await self._later(answered)

    async def put(self, job: NewJob) -> tuple[int, bool]:
        """Insert a job as any other program does: when it returns, the job survives a power loss.

        Returns its id and whether it is new. Raises StoreError.
        """

        def put(_: object) -> tuple[int, bool]:
            with contextlib.closing(self.engine.producer(create=False)) as producer:
                return producer.put(job)

        return await self._later(put)

    def close(self) -> None:
        """Close the connections. A thread that hangs in a call keeps its connection and is not waited for."""
        self._closed = True
        with contextlib.suppress(Empty):
            while True:
                if task := self._tasks.get_nowait():
                    task[1].cancel()
        for _ in self._threads:
            self._tasks.put(None)
        deadline = time.monotonic() + FAREWELL
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    async def _later(self, call: Call[Answer]) -> Answer:
        if self._closed:
            raise StoreError("the admin process is about to end")
        future: Future[Answer] = Future()
        self._open = [other for other in self._open if not other.done()]
        if len(self._open) >= len(self._threads) < self._most:
            thread = threading.Thread(target=_serve, args=(self.engine, self._tasks), name="store", daemon=True)
            thread.start()
            self._threads.append(thread)
        self._open.append(future)
        self._tasks.put((call, future))
        return await asyncio.wrap_future(future)


def _serve(engine: Engine, tasks: Tasks) -> None:
    """Make one call after another; close the connection in the thread that has opened it."""
    operations: Operations | None = None

    def opened() -> Operations:
        nonlocal operations
        operations = operations or engine.operations()
        return operations

    while task := tasks.get():
        call, future = task
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call(opened))
            except BaseException as error:
                if operations is not None and isinstance(error, StoreError) and not isinstance(error, StoreBusy):
                    operations.close()  # the file may have been replaced
                    operations = None
                future.set_exception(error)
        del task, call, future  # with what they hold, before the next one is waited for
    if operations is not None:
        operations.close()
