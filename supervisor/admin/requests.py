"""Requests that enqueue a job and wait for its result: whether it would be run, its insert, its end."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from starlette.requests import ClientDisconnect, Request

from supervisor.admin.store_executor import StoreExecutor
from supervisor.client.awaiting import cancel_job, insert, job_of, make_durable, patiently, result_of_job
from supervisor.client.lanes import Put
from supervisor.client.queue import Queue, naming, result_of
from supervisor.domain.errors import JobFailed, JobNotFound, QueueError, StoreError, WaitTimeout
from supervisor.domain.job import Job, NewJob, Status, high_enough
from supervisor.maintenance.waking import wake_workers
from supervisor.ops.serving import NotServed, Serving, serving, why_untaken
from supervisor.ops.supervisors import Unknown
from supervisor.store.base import Filter, JobSelector, Operations
from supervisor.system.scoreboard import Scoreboard

FRESH = 1.0  # seconds for which a look at the pools is reused
PATIENCE = 1.0  # seconds that a request waits for one
_OURS = re.compile(r"^supervisor(\.\w+)+: ")
_LAST_LOOK = 0.5  # seconds that it may take: a process that is about to end has one


class NoResult(QueueError):
    """The job has ended without a result. `kind` says why: that of its last row in job_errors, or else its state."""

    def __init__(self, job: Job, kind: str) -> None:
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


class Requests:
    """Those of one admin process. Threads and connections are made for the first one.

    `types` are those of the configured pools; `max_waiting` says for which of them requests are refused while how many
    jobs wait. `wake` wakes workers for jobs that were inserted.
    """

    def __init__(
        self,
        queue: Queue,
        executor: StoreExecutor,
        types: Collection[str] = (),
        max_waiting: Mapping[str, int] | None = None,
        wake: Callable[[list[NewJob]], object] = lambda jobs: None,
    ) -> None:
        self._queue = queue
        self._executor = executor
        self._types = frozenset(types)
        self._max_waiting = max_waiting or {}
        self._wake = wake
        self._guard = asyncio.Lock()
        self._seen: Serving | None = None
        self._seen_at = 0.0  # monotonic seconds
        self._results: set[asyncio.Task[Any]] = set()
        self._leaving = False

    async def require(self, job: NewJob) -> None:
        """Raises Unknown if no pool takes the job's type; NotServed if one does and none can run its jobs.

        Nobody is refused by a look at the pools that is older than the request, nor with the unique key of an earlier
        request: the job of that one is the answer. A look for a type of the configuration may fail, or take long.
        """
        began = time.monotonic()
        refusal: QueueError | None = None
        known = job.type in self._types
        with contextlib.suppress(*((StoreError, TimeoutError) if known else ())):
            async with asyncio.timeout(PATIENCE if known else None):
                seen = await self._look(began - FRESH)
                if known or seen.takes(job.type):
                    found = seen.obstacle(job.type) and (await self._look(began)).obstacle(job.type)
                    refusal = NotServed(found) if found else None
                else:
                    why = await self._executor.ask(lambda operations: why_untaken(operations, job.type, self._types))
                    refusal = Unknown([why]) if why else None
        if refusal is not None and not await self._is_there(job):
            raise refusal

    async def _look(self, since: float) -> Serving:
        """At most as old as that."""
        async with self._guard:
            if self._seen is None or self._seen_at < since:
                at = time.monotonic()
                self._seen = await self._executor.ask(serving)
                self._seen_at = at
            return self._seen

    async def _is_there(self, job: NewJob) -> bool:
        if job.unique_key is None:
            return False
        wanted = Filter(types=(job.type,), unique_key=job.unique_key)

        def look(operations: Operations) -> bool:
            return bool(operations.jobs.page(wanted, before=None, limit=1).jobs)

        return await self._executor.ask(look)

    async def enqueue(self, job: NewJob) -> Put:
        """`insert` for who waits for it. Raises QueueFull; InvalidJob for an idempotency key of another request."""
        return await self.insert(job._replace(max_waiting=self._max_waiting.get(job.type)))

    async def insert(self, job: NewJob) -> Put:
        """Its id, and whether it is new. Raises StoreError."""
        return await insert(self._queue, lambda: job, inserted=self._inserted)

    def _inserted(self, jobs: list[NewJob]) -> None:
        """Wake workers. That is only for speed: its failure must not be that of requests whose jobs are there."""
        with contextlib.suppress(Exception):
            self._wake(jobs)

    async def result_of_enqueued(self, job_id: int, new: bool, wait: float, request: Request, *, cancel: bool) -> Any:
        """The result of a job of `enqueue`. `wait` is seconds.

        Raises NoResult; NotFinished when the time is up or this process is about to end; ClientDisconnect, and with
        `cancel` its job is cancelled: others must not know it. A database that cannot be used tells nothing about the
        job, so it is waited for; if the job cannot be made durable then, raises ResultUnknown.
        """
        with naming(job_id):
            try:
                return await self._result(job_id, wait, request, new=new)
            except ClientDisconnect:
                if cancel:
                    await cancel_job(self._queue, job_id)
                raise
            except Exception:
                await make_durable(self._queue)
                raise

    async def result(self, type: str, job_id: int, wait: float, request: Request) -> Any:
        """The result of an earlier job, with the same errors; JobNotFound also for a job of another type; StoreError if
        the first look fails.
        """
        if (await job_of(self._queue, job_id)).type != type:
            raise JobNotFound(job_id)
        return await self._result(job_id, wait, request)

    async def _result(self, job_id: int, wait: float, request: Request, *, new: bool = False) -> Any:
        deadline = time.monotonic() + wait
        result = asyncio.ensure_future(result_of_job(self._queue, job_id, deadline, new=new))
        gone = asyncio.ensure_future(_disconnected(request))
        self._results.add(result)
        if self._leaving:
            result.cancel()
        try:
            await asyncio.wait((result, gone), return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                raise ClientDisconnect
        finally:
            self._results.discard(result)
            result.cancel()
            gone.cancel()
        try:
            if result.cancelled() or isinstance(result.exception(), TimeoutError):
                return await self._at_last(job_id, wait)
            return result.result()
        except JobFailed as error:
            raise await self._without_result(error.job, deadline, wait) from None

    async def _at_last(self, job_id: int, wait: float) -> Any:
        """The result if the job has just finished; raises JobFailed if it has none, and NotFinished."""
        job = None
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_LAST_LOOK):
                job = await job_of(self._queue, job_id)
        if job is None or not job.status.finished:
            raise NotFinished(job_id, wait, job)
        return result_of(job)

    async def _without_result(self, job: Job, deadline: float, wait: float) -> QueueError:
        if job.status is Status.CANCELLED:
            return NoResult(job, job.status)
        try:
            attempts = await patiently(
                lambda: self._executor.ask(lambda operations: operations.jobs.attempts(job.id)), deadline
            )
        except TimeoutError:
            return NotFinished(job.id, wait, job)
        return NoResult(job, attempts[-1].kind if attempts else job.status)

    def leave(self) -> None:
        """The process is about to end: nobody waits any longer."""
        self._leaving = True
        for result in self._results:
            result.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def wake_for(
    jobs: Iterable[NewJob], board: Scoreboard, wakes: Mapping[str, int], takes: Mapping[str, JobSelector]
) -> None:
    """Wake workers for jobs that were just committed, which need not wait until the maintainer notices that.

    `wakes` maps a pool to the eventfd on which its idle workers sleep, `takes` to the jobs that it takes. Of several
    pools that take a job, the first with an idle worker is woken. This is only for speed: a worker that is woken in
    vain, because of its capabilities for example, finds no job and sleeps again.
    """
    idle = board.idle()
    for job in jobs:
        for pool, taken in takes.items():
            if idle[pool] > 0 and job.type in taken.types and high_enough(job.priority, taken.min_priority):
                idle[pool] -= 1
                wake_workers(wakes[pool], 1)
                break
