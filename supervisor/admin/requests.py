"""Requests that wait for the result of a job: what they have in common."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from supervisor.admin.availability import Availability
from supervisor.admin.store_executor import StoreExecutor
from supervisor.admin.uploads import Received
from supervisor.client.asynchronous import AsyncQueue, cancel_job, enqueue, make_durable, patiently, result_of_job
from supervisor.client.lanes import Put
from supervisor.client.queue import naming, result_of
from supervisor.domain.errors import (
    InvalidJob,
    JobFailed,
    JobNotFound,
    QueueError,
    QueueFull,
    StoreBusy,
    StoreError,
    WaitTimeout,
    WriteFailed,
)
from supervisor.domain.job import Job, NewJob, Status
from supervisor.telemetry import events

_NOT_INSERTED = (InvalidJob, QueueFull, StoreBusy, WriteFailed)
_OURS = re.compile(r"^supervisor(\.\w+)+: ")
_LAST_LOOK = 0.5  # seconds that it may take: a process that is about to end has one


class NoResult(QueueError):
    """The job has ended without a result. `kind` says why: that of its last row in job_errors, or else its state."""

    def __init__(self, error: JobFailed, kind: str) -> None:
        job = error.job
        super().__init__(str(JobFailed(replace(job, last_error=job.last_error and plain(job.last_error)))))
        self.job = job
        self.kind = kind


class NotFinished(WaitTimeout):
    """The job continues. `job` is how it is now; None if the database could not tell."""

    def __init__(self, job_id: int, seconds: float, job: Job | None) -> None:
        super().__init__(job_id, seconds)
        self.job = job


def plain(error: str) -> str:
    """The last error of a job without the name of an exception of ours: its message is a sentence."""
    return _OURS.sub("", error, count=1)


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
        self._wake_failed = False
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

        Raises NoResult; NotFinished when the time is up or this process is about to end; QueueFull; InvalidJob for an
        idempotency key of another request; ClientGone, and with `cancel` its job is cancelled: others must not know it.
        Once the job is in the table, a database that cannot be used tells nothing about it, so it is waited for; if
        the job cannot be made durable then, raises ResultUnknown.
        """
        deadline = asyncio.get_running_loop().time() + wait
        left = asyncio.ensure_future(gone)
        try:
            job_id, new = await self._enqueue(job, file)
            with naming(job_id):
                try:
                    return job_id, await self._result(job_id, deadline, wait, left, new=new)
                except ClientGone:
                    if cancel:
                        await cancel_job(self._queue, job_id)
                    raise
                except Exception:
                    await make_durable(self._queue)
                    raise
        finally:
            left.cancel()

    async def wait(self, type: str, job_id: int, wait: float, gone: Coroutine[Any, Any, object]) -> Any:
        """The result of a job that is there. `wait` and `gone` as for `run`.

        Raises what `run` does; JobNotFound also for a job of another type; StoreError if the first look fails.
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
        try:
            if result.cancelled() or isinstance(result.exception(), TimeoutError):
                return await self._at_last(job_id, wait)
            return result.result()
        except JobFailed as error:
            raise await self._without_result(error, deadline, wait) from None

    async def _at_last(self, job_id: int, wait: float) -> Any:
        """The result if the job has just finished; raises JobFailed if it has none, and NotFinished."""
        job = None
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_LAST_LOOK):
                job = await self._queue.job(job_id)
        if job is None or not job.status.finished:
            raise NotFinished(job_id, wait, job)
        return result_of(job)

    async def _without_result(self, error: JobFailed, deadline: float, wait: float) -> QueueError:
        job = error.job
        if job.status is Status.CANCELLED:
            return NoResult(error, job.status)
        try:
            attempts = await patiently(
                lambda: self._executor.ask(lambda operations: operations.jobs.attempts(job.id)), deadline
            )
        except TimeoutError:
            return NotFinished(job.id, wait, job)
        return NoResult(error, attempts[-1].kind if attempts else job.status)

    async def _enqueue(self, job: NewJob, file: Received | None) -> Put:
        wanted = job._replace(max_waiting=self._max_waiting.get(job.type))
        if file is None:
            return await enqueue(self._queue, lambda: wanted, inserted=self._inserted)
        try:
            job_id, new = await enqueue(self._queue, lambda: wanted, inserted=self._inserted)
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

    def _inserted(self, jobs: list[NewJob]) -> None:
        """Wake workers. That is only for speed: its failure must not be that of requests whose jobs are there."""
        try:
            self._wake(jobs)
        except Exception as error:
            if not self._wake_failed:
                events(process="admin").warning("wake_failed", error=repr(error), exc_info=True)
            self._wake_failed = True

    def leave(self) -> None:
        """The process is about to end: nobody waits any longer."""
        self._leaving = True
        for result in self._results:
            result.cancel()
