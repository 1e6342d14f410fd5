"""Whether jobs would be run now, and why one does not run: what is read for `why.py`, which decides it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

from supervisor.domain.errors import JobNotFound, QueueError
from supervisor.domain.job import Job, Reason, Status
from supervisor.domain.text import text_of, untaken, without_password
from supervisor.ops.diagnosis import LATELY
from supervisor.ops.status import present_of
from supervisor.ops.supervisors import seen
from supervisor.ops.views import COUNT_LIMIT, Finding, Present
from supervisor.ops.why import free, obstacles, ready, reasons
from supervisor.store.base import JobSelector, Operations

_REFUSING = {"pool_broken", "drained"}  # they last; others pass, and the job can wait for that
PASSING = {"next", "behind", "starting"}  # reasons of a job that nothing keeps from running


class NotServed(QueueError):
    """No pool runs jobs of the type at the moment. Nothing was enqueued. `hint` is what to do about it."""

    def __init__(self, found: Finding) -> None:
        super().__init__(found.fact)
        self.hint = found.advice


def serving(operations: Operations) -> Present:
    """Raises StoreError."""
    now = operations.statistics.now()
    return present_of(list(seen(operations, now)), operations.controls.current(), now)


def takes(present: Present, type_: str) -> bool:
    """Whether a pool takes the type, or one that is not known may."""
    living = (one for one in present.supervisors if one.alive is not False)
    return any(type_ in pool.types for pool in present.pools) or not all(one.visible for one in living)


def refusing(present: Present, type_: str, requires: str, priority: int) -> Finding | None:
    """For which of the obstacles a request that waits for such a job is refused."""
    found = obstacles(type_, requires, priority, present, 0.0)
    lasting = found if found and all(each.name in _REFUSING for each in found) else []
    return next((each for each in found if each.name == "paused"), next(iter(lasting), None))


def why(operations: Operations, job_id: int) -> tuple[Job, list[Reason]]:
    """A job, and why it does not run, or how it does or has ended: see `reasons`. Raises JobNotFound."""
    job = operations.jobs.get(job_id) if abs(job_id) < 2**63 else None
    if job is None:
        raise JobNotFound(job_id)
    return job, why_of(operations, job)


def why_of(operations: Operations, job: Job) -> list[Reason]:
    now, present = operations.statistics.now(), serving(operations)
    worker = operations.registry.worker(job.locked_by) if job.status is Status.RUNNING and job.locked_by else None
    ahead = _ahead(operations, job, present, now) if job.status is Status.PENDING and job.scheduled_at <= now else None
    held, twin = operations.jobs.held(job), operations.jobs.twin(job)
    running = [] if ahead is None else [one.job for one in ready(free(job, present, now), present) if one.job]
    if len(running) <= 2:
        found = filter(None, map(operations.jobs.get, running))
        present = present._replace(types={one.id: text_of(one.type) for one in found})
    return reasons(job, now, present, worker=worker, held=held, ahead=ahead, twin=twin)


def _ahead(operations: Operations, job: Job, present: Present, now: float) -> tuple[int, float] | None:
    """By the pools that come to it first."""
    rates: dict[JobSelector, float] = defaultdict(float)
    for pool in free(job, present, now):
        rates[JobSelector(tuple(pool.types), " ".join(pool.capabilities), pool.min_priority)] += pool.rate
    found = ((operations.backlog.ahead(job, one, now, COUNT_LIMIT), rate) for one, rate in rates.items())
    return min(found, default=None)


def why_untaken(operations: Operations, type_: str, configured: Collection[str]) -> str:
    """That neither the configuration nor any supervisor has a pool for the type; "" if one has, or may have.

    What a host takes that is gone is not known: it may soon be back.
    """
    now = serving(operations)
    if takes(now, type_) or type_ in configured:
        return ""
    at = operations.statistics.now()
    if any(at - one.at < LATELY for one in operations.registry.gone(at)):
        return ""
    return untaken(type_, {*configured, *(each for pool in now.pools for each in pool.types)})


def why_waiting(operations: Operations, job: Job) -> list[Reason]:
    """What an unfinished job waits for; nothing of one that runs, or has ended."""
    return why_of(operations, job) if job.status in (Status.PENDING, Status.HELD) else []


def why_not_started(operations: Operations, job_id: int, database: str) -> str:
    """What keeps it from starting; "" if nothing does that is known. `database` is its URL. Raises StoreError."""
    job = operations.jobs.get(job_id)
    if job is not None and job.status is Status.CANCELLED:  # it may have been because nobody waits any longer
        job = replace(job, status=Status.PENDING)
    found = [] if job is None else why_waiting(operations, job)
    where = {"no_supervisor": f" on {without_password(database)}"}
    return next((each.text + where.get(each.code, "") for each in found if each.code not in PASSING), "")
