"""Requests that wait for the result of a job: what they have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

from supervisor.admin.availability import Availability
from supervisor.admin.store_executor import StoreExecutor
from supervisor.admin.uploads import Received
from supervisor.client.asynchronous import AsyncQueue
from supervisor.client.awaited_requests import cancel_job, enqueue, make_durable, result_of_job
from supervisor.client.lanes import Put
from supervisor.domain.errors import (
    InvalidJob,
    JobFailed,
    JobNotFound,
    QueueError,
    QueueFull,
    StoreBusy,
    WaitTimeout,
    WriteFailed,
)
from supervisor.domain.job import NewJob, Status

_NOT_INSERTED = (InvalidJob, QueueFull, StoreBusy, WriteFailed)


class NoResult(QueueError):
    """The job has ended without a result. `kind` says why: that of its last row in job_errors, or else its state."""

    def __init__(self, error: JobFailed, kind: str) -> None:
        super().__init__(str(error))
        self.job = error.job
        self.kind = kind


class ClientGone(Exception):
    """Nobody is left to be answered."""


class Requests:
    """Those of one admin process. Threads and connections are made for the first one.

    `types` are those of the configured pools; `max_waiting` says for which of them requests are refused while how many
    jobs wait. `wake` wakes workers for jobs that were inserted.
    """

    def __init__(
        self,
        queue: AsyncQueue,
        executor: StoreExecutor,
        types: Collection[str] = (),
        max_waiting: Mapping[str, int] | None = None,
        wake: Callable[[list[NewJob]], object] = lambda jobs: None,
    ) -> None:
        self.availability = Availability(executor, types)
        self._queue = queue
        self._executor = executor
        self._max_waiting = max_waiting or {}
        self._wake = wake
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

        Raises NoResult; WaitTimeout when the time is up or this process is about to end; QueueFull; InvalidJob for an
        idempotency key of another request; ClientGone, and with `cancel` the job is cancelled if it is a new one.
        """
        deadline = asyncio.get_running_loop().time() + wait
        left = asyncio.ensure_future(gone)
        try:
            job_id, new = await self._enqueue(job, file)
            try:
                return job_id, await self._result(job_id, deadline, wait, left, new=new)
            except ClientGone:
                if cancel and new:
                    await cancel_job(self._queue, job_id)
                raise
            except Exception:
                await make_durable(self._queue)
                raise
        finally:
            left.cancel()

    async def wait(self, type: str, job_id: int, wait: float, gone: Coroutine[Any, Any, object]) -> Any:
        """The result of a job that is there. `wait` and `gone` as for `run`.

        Raises what `run` does; JobNotFound also for a job of another type.
        """
        deadline = asyncio.get_running_loop().time() + wait
        left = asyncio.ensure_future(gone)
        try:
            if (await self._queue.job(job_id)).type != type:
                raise JobNotFound(job_id)
            return await self._result(job_id, deadline, wait, left)
        finally:
            left.cancel()

    async def _result(
        self, job_id: int, deadline: float, wait: float, left: asyncio.Future[object], *, new: bool = False
    ) -> Any:
        result = asyncio.ensure_future(result_of_job(self._queue, job_id, deadline, new=new))
        self._results.add(result)
        if self._leaving:
            result.cancel()
        try:
            await asyncio.wait((result, left), return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                raise ClientGone
        finally:
            self._results.discard(result)
            result.cancel()
        if result.cancelled() or isinstance(result.exception(), TimeoutError):
            raise WaitTimeout(job_id, wait)
        try:
            return result.result()
        except JobFailed as error:
            raise await self._without_result(error) from None

    async def _without_result(self, error: JobFailed) -> NoResult:
        if error.job.status is Status.CANCELLED:
            return NoResult(error, error.job.status)
        attempts = await self._executor.ask(lambda operations: operations.jobs.attempts(error.job.id))
        return NoResult(error, attempts[-1].kind if attempts else error.job.status)

    async def _enqueue(self, job: NewJob, file: Received | None) -> Put:
        wanted = job._replace(max_waiting=self._max_waiting.get(job.type))
        if file is None:
            return await enqueue(self._queue, lambda: wanted, put_each=self._put_each)
        try:
            job_id, new = await enqueue(self._queue, lambda: wanted, put_each=self._put_each)
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

    def _put_each(self, jobs: list[NewJob]) -> list[Put | Exception]:
        answers = self._queue._queue._put_each(jobs)
        self._wake([job for job, answer in zip(jobs, answers, strict=True) if isinstance(answer, tuple) and answer[1]])
        return answers

    def leave(self) -> None:
        """The process is about to end: nobody waits any longer."""
        self._leaving = True
        for result in self._results:
            result.cancel()
