"""The part of `Queue` that looks at many jobs and changes jobs by hand, by the rules of the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TypeVar

from supervisor.client.connections import Connections, Seat
from supervisor.domain.errors import InvalidJob
from supervisor.domain.intake import is_possible_id, job_id_of, moment, short, whole
from supervisor.domain.job import Job, Status
from supervisor.store.base import Filter, Operations

Answer = TypeVar("Answer")

_ALL = 2**62
_LARGEST_PAGE = 10_000


class JobPage(list[Job]):
    """Some jobs, the latest first. `next` is the `before` of the following page; None: there are no more."""

    def __init__(self, jobs: Iterable[Job], following: int | None) -> None:
        super().__init__(jobs)
        self.next = following


class Administration:
    """See `Queue`, which inherits this. StoreError is raised if the database cannot be used."""

    _connections: Connections

    def jobs(
        self,
        type: str | Iterable[str] = (),
        status: str | Iterable[str] = (),
        *,
        unique_key: str | None = None,
        ids: Iterable[int] | None = None,
        tags: Iterable[str] = (),
        error: str = "",
        text: str = "",
        finished_after: datetime | float | None = None,
        finished_before: datetime | float | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> JobPage:
        """The latest jobs that match all these conditions, at most `limit` (up to 10,000), and where to continue.

        `type` and `status` may be one or several; `tags` all stand in the list "tags" of the job's meta; `error` is a
        part of its last error, in any case; `text` a part of that, the payload or the result. `finished_after` and
        `finished_before` are aware datetimes or Unix seconds. `before` is `next` of the previous page. Raises
        InvalidJob, which names the argument.

        Finding finished jobs other than failed ones reads the table down from the latest: 3 ms for 10,000 rows.
        """
        limit = whole("limit", limit, 1, _LARGEST_PAGE)
        if before is not None and not is_possible_id(before, "before"):
            ids, before = (() if before < 0 else ids), None
        which = _filter(type, status, unique_key, ids, tags, error, text, finished_after, finished_before)

        if which is None:
            return JobPage((), None)

        def look(operations: Operations) -> JobPage:
            found, following = operations.jobs.some_ids(which, before=before, limit=limit)
            whole = (operations.jobs.get(job_id) for job_id in found)
            return JobPage((job for job in whole if job is not None), following)

        return self._asked(self._connections.lister, look)

    def count(
        self,
        type: str | Iterable[str] = (),
        status: str | Iterable[str] = (),
        *,
        unique_key: str | None = None,
        ids: Iterable[int] | None = None,
        tags: Iterable[str] = (),
        error: str = "",
        text: str = "",
        finished_after: datetime | float | None = None,
        finished_before: datetime | float | None = None,
        most: int | None = None,
    ) -> int:
        """The number of jobs that match all these conditions, those of `jobs`, counted up to `most`."""
        which = _filter(type, status, unique_key, ids, tags, error, text, finished_after, finished_before)
        limit = _ALL if most is None else whole("most", most, 0, _ALL)
        if which is None or limit == 0:
            return 0
        return self._asked(self._connections.lister, lambda operations: operations.jobs.count(which, limit=limit))

    def cancel(self, job_id: int) -> Status:
        """Cancel a pending job, or ask a running one to stop: it stays `running` until it has stopped.

        Returns its new status. Raises JobNotFound, and Conflict if it has finished.
        """
        job_id = job_id_of(job_id)
        return self._changed(lambda operations: operations.actions.cancel(job_id, operations.statistics.now()))

    def retry(self, job_id: int) -> None:
        """Return a failed, quarantined or cancelled job to pending, due now, with its counters reset.

        Raises JobNotFound, and Conflict for another status or if an unfinished job has its unique key.
        """
        from supervisor.ops import commands  # imported here: few programs use it

        job_id = job_id_of(job_id)

        def retry(operations: Operations) -> None:
            commands.check(operations, "retry", [job_id])
            outcome = commands.retry(operations, [job_id], operations.statistics.now())
            commands.require_all([job_id], outcome)

        self._changed(retry)

    def delete(self, job_id: int) -> None:
        """Delete a finished job with its errors and runs. Raises JobNotFound, and Conflict if it is unfinished."""
        from supervisor.ops import commands

        job_id = job_id_of(job_id)

        def delete(operations: Operations) -> None:
            commands.check(operations, "delete", [job_id])
            operations.actions.delete([job_id])

        self._changed(delete)

    def pause(self, type: str, *, force: bool = False, host: str = "") -> bool:
        """Start no more jobs of a type; running ones continue. Returns False if it was paused already. With a `host`,
        or a pattern such as "gpu-*", that holds only there.

        A type that no running supervisor takes and no job has is probably mistyped: it raises QueueError unless
        `force` is true, as does a host without a supervisor. Raises InvalidJob for what cannot be a type.
        """
        return self._paused(type, True, force, host)

    def resume(self, type: str, *, host: str = "") -> bool:
        """Start jobs of a paused type again: everywhere, or where it was paused on exactly this host or pattern.

        Returns False if it was not paused so.
        """
        return self._paused(type, False, False, host)

    def _paused(self, type_: str, paused: bool, force: bool, host: str) -> bool:
        from supervisor.ops import commands

        return self._changed(
            lambda operations: commands.pause(
                operations, type_, paused, operations.statistics.now(), force=force, host=host
            )
        )

    def _changed(self, work: Callable[[Operations], Answer]) -> Answer:
        return self._asked(self._connections.writer, work)

    def _asked(self, seat: Seat, work: Callable[[Operations], Answer]) -> Answer:
        return self._connections.using(seat, lambda producer: work(producer.operations))


def _filter(
    type_: str | Iterable[str],
    status: str | Iterable[str],
    unique_key: str | None,
    ids: Iterable[int] | None,
    tags: Iterable[str],
    error: str,
    text: str,
    after: datetime | float | None,
    before: datetime | float | None,
) -> Filter | None:
    """None if no job can match."""
    which = Filter(
        statuses=tuple(_status(value) for value in _several("status", status)),
        types=_several("type", type_),
        error=_text("error", error),
        text=_text("text", text),
        unique_key=None if unique_key is None else _text("unique_key", unique_key),
        tags=_several("tags", tags),
        ids=() if ids is None else _possible(ids),
        finished_after=moment("finished_after", after),
        finished_before=moment("finished_before", before),
    )
    return None if ids is not None and not which.ids else which


def _possible(ids: Iterable[int]) -> tuple[int, ...]:
    try:
        values = tuple(ids)
    except TypeError:
        raise InvalidJob("ids", f"{short(ids)} is not a list of ids") from None
    return tuple(value for value in values if is_possible_id(value, "ids"))


def _several(field: str, value: str | Iterable[str]) -> tuple[str, ...]:
    try:
        values = (value,) if isinstance(value, str) else tuple(value)
    except TypeError:
        raise InvalidJob(field, f"{short(value)} is neither a string nor a list of strings") from None
    return tuple(_text(field, each) for each in values)


def _text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidJob(field, f"{short(value)} is not a string")
    return value


def _status(value: str) -> Status:
    try:
        return Status(value)
    except ValueError:
        raise InvalidJob("status", f"{short(value)} is not a status; there are {', '.join(Status)}") from None
