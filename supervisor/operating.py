"""What operators may ask for, and when it is refused: the rules of the operating commands."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from supervisor.domain.duration import seconds
from supervisor.domain.errors import ConfigError, Conflict, JobNotFound, QueueError
from supervisor.domain.job import Status
from supervisor.store.base import Filter, Operations, SupervisorRecord
from supervisor.system.scoreboard import MAX_SLOTS, Scoreboard

MOST_WORKERS = MAX_SLOTS - 1
_RETRIABLE = (Status.FAILED, Status.QUARANTINED, Status.CANCELLED)
_FINISHED = tuple(status for status in Status if status.finished)
_UNFINISHED = tuple(status for status in Status if not status.finished)


class NobodyRuns(QueueError):
    """No supervisor lives that could obey."""


def check_retry(operations: Operations, ids: Iterable[int]) -> None:
    """Raises JobNotFound or Conflict for the first job that cannot be retried."""
    for job_id in ids:
        _require(operations, job_id, _RETRIABLE, "a failed, quarantined or cancelled job can be retried")


def retry(operations: Operations, ids: Sequence[int], now: float) -> int:
    """Retry these very jobs. Raises Conflict if one is left as it is; the others are retried."""
    retried = operations.retry(ids, now)
    if retried < len(ids):
        which = f"job {ids[0]} was" if len(ids) == 1 else f"{len(ids) - retried} of {len(ids)} jobs were"
        raise Conflict(f"{which} left as it is: an unfinished job has its unique key, or it has just changed")
    return retried


def check_cancel(operations: Operations, ids: Iterable[int]) -> None:
    """Raises JobNotFound or Conflict for the first job that cannot be cancelled."""
    for job_id in ids:
        _require(operations, job_id, _UNFINISHED, "a pending or running job can be cancelled")


def check_delete(operations: Operations, ids: Iterable[int]) -> None:
    """Raises JobNotFound or Conflict for the first job that cannot be deleted."""
    for job_id in ids:
        _require(operations, job_id, _FINISHED, "a finished job can be deleted; cancel it first")


def _require(operations: Operations, job_id: int, allowed: Collection[Status], rule: str) -> None:
    job = operations.job(job_id)
    if job is None:
        raise JobNotFound(job_id)
    if job.status not in allowed:
        raise Conflict(f"job {job_id} is {job.status}; only {rule}")


def purgeable(older_than: str, statuses: Sequence[Status], type_: str | None, now: float) -> Filter:
    """The jobs that finished so long ago. Raises ConfigError for a duration or a status that cannot be meant."""
    try:
        before = now - seconds(older_than)
    except ValueError as error:
        raise ConfigError([f"--older-than: {error}"]) from None
    for status in statuses:
        if not status.finished:
            raise ConfigError([f"--status: {status} jobs are not finished, so they are not purged"])
    return Filter(tuple(statuses) or _FINISHED, (type_,) if type_ else (), finished_before=before)


def scale(operations: Operations, pool: str, workers: int | None, configured: Iterable[str], now: float) -> None:
    """Fix a pool's size, or give it back with None.

    Raises ConfigError for a size out of range, and for a pool that neither the configuration nor a living
    supervisor knows, if one of them can tell.
    """
    if workers is not None and not 0 <= workers <= MOST_WORKERS:
        raise ConfigError([f"{workers} is no number of workers; it must be from 0 to {MOST_WORKERS}"])
    known = set(configured)
    for record in living(operations):
        known.update(_pools_of(record))
    # A pool that is no longer known may still have a size to give back.
    stale = workers is None and pool in operations.controls().sizes
    if known and pool not in known and not stale:
        raise ConfigError([f"there is no pool {pool!r}; there are {', '.join(sorted(known))}"])
    operations.scale(pool, workers, now)


def reload(operations: Operations, now: float) -> list[SupervisorRecord]:
    """Ask every living supervisor to reload, and return them.

    Raises NobodyRuns, or ConfigError if a configuration that is going to be read has faults: the
    supervisor would keep the old one, and say so where nobody looks.
    """
    supervisors = living(operations)
    if not supervisors:
        raise NobodyRuns("no supervisor is running on this database, so there is nothing to reload")
    from supervisor.config import load

    problems: list[str] = []
    for path in sorted({record.config for record in supervisors}):
        with suppress(PermissionError):
            try:
                load(Path(path))
            except ConfigError as error:
                problems += error.problems
    if problems:
        raise ConfigError(problems)
    operations.request_reload(now)
    return supervisors


def living(operations: Operations) -> list[SupervisorRecord]:
    """The supervisors that are not known to be dead."""
    return [record for record in operations.supervisors() if operations.owner_lives(record) is not False]


def _pools_of(record: SupervisorRecord) -> list[str]:
    board = Scoreboard.open(Path(record.scoreboard))
    return [] if board is None else list(board.bulletin().get("pools", {}))
