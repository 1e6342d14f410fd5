"""Requests that wait for the result of a job: what they have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping
from typing import Any

from supervisor.admin.availability import Availability
from supervisor.admin.store_executor import StoreExecutor
from supervisor.admin.uploads import Received
from supervisor.client.asynchronous import AsyncQueue
from supervisor.client.awaited_requests import cancel_job, enqueue, make_durable, result_of_job
from supervisor.client.lanes import Put
from supervisor.domain.errors import InvalidJob, QueueFull, StoreBusy, WaitTimeout, WriteFailed
from supervisor.domain.job import NewJob

_NOT_INSERTED = (InvalidJob, QueueFull, StoreBusy, WriteFailed)


class ClientGone(Exception):
    """Nobody is left to be answered."""


class Requests:
    """Those of one admin process. Threads and connections are made for the first one.

    `types` are those of the configured pools; `max_waiting` says for which of them requests are refused while how many
    jobs wait.
    """

    def __init__(
        self,
        queue: AsyncQueue,
        executor: StoreExecutor,
        types: Collection[str] = (),
        max_waiting: Mapping[str, int] | None = None,
    ) -> None:
        self.availability = Availability(executor, types)
        self._queue = queue
        self._max_waiting = max_waiting or {}
        self._results: set[asyncio.Task[Any]] = set()
        self._leaving = False

    async def run(
        self,
        job: NewJob,
        wait: float,
        gone: Coroutine[Any, Any, object],
        *,
        cancel: bool,
        file: Received | None = None,
    ) -> tuple[int, Any]:
        """The id of the job, and its result. `wait` is seconds, `gone` ends when the client goes away. The `file` that
        its payload names is removed if no new job is inserted.

        Raises JobFailed; WaitTimeout when the time is up or this process is about to end; QueueFull; InvalidJob for an
        idempotency key of another request; ClientGone, and with `cancel` the job is cancelled if it is a new one.
        """
        deadline = asyncio.get_running_loop().time() + wait
        left = asyncio.ensure_future(gone)
        try:
            job_id, new = await self._enqueue(job, file)
            result = asyncio.ensure_future(result_of_job(self._queue, job_id, deadline))
            self._results.add(result)
            if self._leaving:
                result.cancel()
            try:
                await asyncio.wait((result, left), return_when=asyncio.FIRST_COMPLETED)
                if result.done():
                    return job_id, await self._answer(result, job_id, wait)
            finally:
                self._results.discard(result)
                result.cancel()
            if cancel and new:
                await cancel_job(self._queue, job_id)
            raise ClientGone
        finally:
            left.cancel()

    async def _answer(self, result: asyncio.Task[Any], job_id: int, wait: float) -> Any:
        error = TimeoutError() if result.cancelled() else result.exception()
        if error is None:
            return result.result()
        await make_durable(self._queue)
        raise WaitTimeout(job_id, wait) if isinstance(error, TimeoutError) else error

    async def _enqueue(self, job: NewJob, file: Received | None) -> Put:
        wanted = job._replace(max_waiting=self._max_waiting.get(job.type))
        if file is None:
            return await enqueue(self._queue, lambda: wanted)
        try:
            job_id, new = await enqueue(self._queue, lambda: wanted)
        except _NOT_INSERTED:
            await file.discard()
            raise
        except BaseException:  # the job may be there
            file.keep()
            raise
        if new:
            file.keep()
        else:
            await file.discard()
        return job_id, new

    def leave(self) -> None:
        """The process is about to end: nobody waits any longer."""
        self._leaving = True
        for result in self._results:
            result.cancel()
