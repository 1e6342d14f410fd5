"""Runs database calls on a few threads, which share as many connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from supervisor.domain.errors import StoreBusy, StoreError
from supervisor.store.base import Engine, Operations

Answer = TypeVar("Answer")

THREADS = 3  # a slow call must not delay the others; more threads would only wait for the CPU


class StoreExecutor:
    """Runs database calls for the event loop. Threads and connections are created when they are needed."""

    def __init__(self, engine: Engine, threads: int = THREADS) -> None:
        self.engine = engine
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="store")
        self._idle: list[Operations] = []  # no more than threads
        self._closed = False

    async def ask(self, question: Callable[[Operations], Answer]) -> Answer:
        """What `question` returns. Raises StoreError if the database cannot be used, and what it raises itself."""
        if self._closed:
            raise StoreError("the admin process is about to end")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._answer, question)

    def _answer(self, question: Callable[[Operations], Answer]) -> Answer:
        try:
            operations = self._idle.pop()
        except IndexError:
            operations = self.engine.operations()
        kept = True
        try:
            operations.check()  # an open connection would still read a deleted file
            return question(operations)
        except StoreError as error:
            kept = isinstance(error, StoreBusy)  # otherwise the file may have been replaced
            raise
        finally:
            if kept and not self._closed:
                self._idle.append(operations)
            else:
                operations.close()

    def close(self) -> None:
        """Close the connections. A call that hangs keeps its connection until it ends, and is not waited for."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        while self._idle:
            self._idle.pop().close()
