"""Questions to the database, asked on a few threads of their own, each with a connection of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from supervisor.domain.errors import StoreBusy, StoreError
from supervisor.domain.job import NewJob
from supervisor.store.base import Engine, Operations

Answer = TypeVar("Answer")

THREADS = 3  # a slow question must not hold up the others; more would only queue on the same two cores


class Desk:
    """Answers questions of the event loop. Connections are opened at the first question."""

    def __init__(self, engine: Engine, threads: int = THREADS) -> None:
        self.engine = engine
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="desk")
        self._local = threading.local()

    async def ask(self, question: Callable[[Operations], Answer]) -> Answer:
        """What `question` returns. Raises StoreError if the database cannot be used, and what it raises itself."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._answer, question)

    async def put(self, job: NewJob) -> tuple[int, bool]:
        """Insert a job as any other program does: when it returns, the job survives a power loss.

        Returns its id and whether it is a new one's. Raises StoreError.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._put, job)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _answer(self, question: Callable[[Operations], Answer]) -> Answer:
        try:
            operations = self._operations()
            operations.insist_on_file()  # or we would go on telling of a file that is not there any more
            return question(operations)
        except StoreBusy:
            raise
        except StoreError:
            self._forget()  # the file may be another by now
            raise

    def _operations(self) -> Operations:
        if not hasattr(self._local, "operations"):
            self._local.operations = self.engine.operations()
        operations: Operations = self._local.operations
        return operations

    def _forget(self) -> None:
        operations = self.__dict__["_local"].__dict__.pop("operations", None)
        if operations is not None:
            operations.close()

    def _put(self, job: NewJob) -> tuple[int, bool]:
        intake = self.engine.intake(create=False)
        try:
            return intake.put(job)
        finally:
            intake.close()
