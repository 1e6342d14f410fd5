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

from supervisor.admin.answers import Refused
from supervisor.admin.store_executor import StoreExecutor
from supervisor.client.asynchronous import InTask
from supervisor.client.connections import Put
from supervisor.client.queue import Queue
from supervisor.client.waiting import naming, result_of
from supervisor.domain.errors import JobFailed, JobNotFound, QueueError, StoreError
from supervisor.domain.job import Job, NewJob, Status, high_enough
from supervisor.maintenance.waking import wake_workers
from supervisor.ops.serving import NotServed, refusing, serving, takes, why_untaken
from supervisor.ops.supervisors import Unknown
from supervisor.ops.views import Present
from supervisor.store.base import Filter, JobSelector
from supervisor.system.scoreboard import Scoreboard

FRESH = 1.0  # seconds for which a look at the pools is reused
PATIENCE = 1.0  # seconds that a request waits for one
_OURS = re.compile(r"^supervisor(\.\w+)+: ")
_LAST_LOOK = 0.5  # seconds that it may take: a process that is about to end has one
_REFUSED = ("permanent", "payload")  # kinds of errors with which a handler says that the request cannot succeed


class NotFinished(Exception):
    """The job continues. `job` is how it is now; None if the database could not tell."""

    def __init__(self, job: Job | None) -> None:
        self.job = job


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
        self._caller = InTask(queue, self._inserted)
        self._executor = executor
        self._types = frozenset(types)
        self._max_waiting = max_waiting or {}
        self._wake = wake
        self._guard = asyncio.Lock()
        self._seen: Present | None = None
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
                which = job.type, job.requires, job.priority
                if known or takes(seen, job.type):
                    found = refusing(seen, *which) and refusing(await self._look(began), *which)
                    refusal = NotServed(found) if found else None
                else:
                    why = await self._executor.ask(lambda operations: why_untaken(operations, job.type, self._types))
                    refusal = Unknown([why]) if why else None
        if refusal is None:
            return
        same = Filter(types=(job.type,), unique_key=job.unique_key)
        if job.unique_key is None or not await self._executor.ask(
            lambda operations: operations.jobs.page(same, before=None, limit=1).jobs
        ):
            raise refusal

    async def _look(self, since: float) -> Present:
        """At most as old as that."""
        async with self._guard:
            if self._seen is None or self._seen_at < since:
                at = time.monotonic()
                self._seen = await self._executor.ask(serving)
                self._seen_at = at
            return self._seen

    async def enqueue(self, job: NewJob) -> Put:
        """`insert` for who waits for it. Raises QueueFull; InvalidJob for an idempotency key of another request."""
        return await self.insert(job._replace(max_waiting=self._max_waiting.get(job.type)))

    async def insert(self, job: NewJob) -> Put:
        """Its id, and whether it is new. Raises StoreError."""
        return await self._caller.insert(lambda: job)

    def _inserted(self, jobs: list[NewJob]) -> None:
        """Wake workers. That is only for speed: its failure must not be that of requests whose jobs are there."""
        with contextlib.suppress(Exception):
            self._wake(jobs)

    async def result_of_enqueued(self, job_id: int, new: bool, wait: float, request: Request, *, cancel: bool) -> Any:
        """The result of a job of `enqueue`, with the errors of `result`. If the client goes away, with `cancel` its job
        is cancelled: others must not know it. If the job cannot be made durable, raises ResultUnknown.
        """
        with naming(job_id):
            try:
                return await self.result(job_id, wait, request, new=new)
            except ClientDisconnect:
                if cancel:
                    self._caller.give_up(job_id)
                raise
            except Exception:
                await self._caller.make_durable()
                raise

    async def require_type(self, job_id: int, type: str) -> None:
        """Raises JobNotFound, also for a job of another type, and StoreError."""
        if (await self._caller.job(job_id)).type != type:
            raise JobNotFound(job_id)

    async def result(self, job_id: int, wait: float, request: Request, *, new: bool = False) -> Any:
        """The result of a job, waited for `wait` seconds, also while the database cannot be used.

        Raises Refused if it has ended without one, NotFinished when the time is up or this process is about to end,
        ClientDisconnect, and JobNotFound.
        """
        deadline = time.monotonic() + wait
        result = asyncio.ensure_future(self._caller.result(job_id, deadline, new=new))
        gone = asyncio.ensure_future(_disconnected(request))
        self._results.add(result)
        if self._leaving:
            result.cancel()
        try:
            await asyncio.wait((result, gone), return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                raise ClientDisconnect
            if not (result.cancelled() or isinstance(result.exception(), TimeoutError)):
                return result.result()
            job = None
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(_LAST_LOOK):
                    job = await self._caller.job(job_id)
            if job is None or not job.status.finished:
                raise NotFinished(job)
            return result_of(job)  # it has just finished
        except JobFailed as error:
            raise await self._refusal(error.job, deadline) from None
        finally:
            self._results.discard(result)
            result.cancel()
            gone.cancel()

    async def _refusal(self, job: Job, deadline: float) -> Exception:
        """For a job that has ended without a result: whether the client, somebody else, or the service is the cause."""
        kind, code = str(job.status), 409
        if job.status is not Status.CANCELLED:
            try:
                attempts = await self._caller.patiently(
                    lambda: self._executor.ask(lambda operations: operations.jobs.attempts(job.id)), deadline
                )
            except TimeoutError:
                return NotFinished(job)
            kind = attempts[-1].kind if attempts else kind
            code = 422 if job.status is Status.FAILED and kind in _REFUSED else 500
        error = str(JobFailed(replace(job, last_error=job.last_error and plain(job.last_error))))
        return Refused(code, error, job=job.id, status=job.status, kind=kind)

    def leave(self) -> None:
        """The process is about to end: nobody waits any longer."""
        self._leaving = True
        for result in self._results:
            result.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def plain(error: str) -> str:
    """The last error of a job without the name of an exception of ours: its message is a sentence."""
    return _OURS.sub("", error, count=1)


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
