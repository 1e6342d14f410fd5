"""Why a job has not started, for those who have waited for it in vain."""

from __future__ import annotations

from supervisor.domain.job import Status
from supervisor.domain.text import text_of, untaken, without_password
from supervisor.ops.posted import living
from supervisor.ops.serving import serving
from supervisor.store.base import Operations

# One that was cancelled may have been so because nobody waits any longer.
_NOT_STARTED = (Status.PENDING, Status.CANCELLED)


def why_not_started(operations: Operations, job_id: int, database: str) -> str:
    """What keeps it from starting; "" if that is not known. `database` is its URL. Raises StoreError."""
    job = operations.jobs.get(job_id)
    if job is None or job.status not in _NOT_STARTED:
        return ""
    if not living(operations):
        return f"no supervisor is running on {without_password(database)}"
    type_, now = text_of(job.type), serving(operations)
    if not now.takes(type_):
        return untaken(type_, {each for taker in now.takers for each in taker.types})
    obstacle = now.obstacle(type_)
    return "" if obstacle is None else obstacle.fact
