"""The part of `Queue` that looks at jobs and changes them, by the rules of the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar

from supervisor.client.connections import Connections, Seat
from supervisor.client.watcher import Watcher
from supervisor.domain.enqueueing import payload_of
from supervisor.domain.errors import InvalidJob, JobNotFound, StoreError
from supervisor.domain.job import Job, Reason, Status
from supervisor.domain.values import LAST_ID, checked_type, is_possible_id, job_id_of, moment, short, whole
from supervisor.store.base import BatchView, Engine, Filter, TransactionalInsert

if TYPE_CHECKING:
    from typing import Unpack

    from supervisor.store.base import Operations, Planned

Answer = TypeVar("Answer")

_ALL = 2**62
_LARGEST_PAGE = 10_000


class JobPage(list[Job]):
    """Some jobs, the latest first. `next` is the `before` of the following page; None: there are no more."""

    def __init__(self, jobs: Iterable[Job], following: int | None) -> None:
        super().__init__(jobs)
        self.next = following


class Conditions(TypedDict, total=False):
    """Which jobs are meant, beside their type and status: see `Queue.jobs`."""

    unique_key: str | None
    ids: Iterable[int] | None
    tags: Iterable[str]
    error: str
    text: str
    batch: int | None
    finished_after: datetime | float | None
    finished_before: datetime | float | None


class Administration:
    """See `Queue`, which inherits this. StoreError is raised if the database cannot be used."""

    _connections: Connections
    _watcher: Watcher
    _prepared = False  # whether the tables existed when a caller's connection was last used

    @property
    def url(self) -> str:
        """The database's URL, with an absolute path; after a move the new one."""
        return self._engine.url

    @property
    def _engine(self) -> Engine:
        return self._connections.engine

    def job(self, job_id: int, *, connection: object = None) -> Job:
        """The job as it is now; with `connection`, as the caller's transaction sees it. Raises JobNotFound."""
        job_id = job_id_of(job_id)
        if connection is not None:
            job = self._on(connection).job(connection, job_id)
        else:
            job = self._connections.using(self._connections.reader, lambda producer: producer.job(job_id))
        if job is None:
            raise JobNotFound(job_id)
        return job

    def why(self, job_id: int) -> list[Reason]:
        """Why the job does not run, first what must change first; of one that runs or has ended, how. Never empty.
        Raises JobNotFound.
        """
        from supervisor.ops.serving import why

        job_id = job_id_of(job_id)
        return self._asked(self._connections.lister, lambda operations: why(operations, job_id)[1])

    def _why_not_started(self, job_id: int) -> str:
        """What keeps the job from starting, such as a mistyped type; "" if that is not known."""
        from supervisor.ops.serving import why_not_started  # imported here: few programs wait in vain

        try:
            return self._asked(self._connections.reader, lambda ops: why_not_started(ops, job_id, self.url))
        except (StoreError, OSError):  # the scoreboards are files
            return ""

    def _on(self, connection: object) -> TransactionalInsert:
        """For the caller's connection, without a guard and without a connection of ours: the caller may hold SQLite's
        write lock, and the holder of the guard may be waiting for that lock.
        """
        transactional = self._engine.transactional
        if not self._prepared:
            # The tables may have to be created in the caller's transaction, which may not commit: check again then.
            self._prepared = transactional.prepare(connection, create=self._connections.create)
        return transactional

    def jobs(
        self,
        type: str | Iterable[str] = (),
        status: str | Iterable[str] = (),
        *,
        before: int | None = None,
        limit: int = 100,
        **conditions: Unpack[Conditions],
    ) -> JobPage:
        """The latest jobs that match all these conditions, at most `limit` (up to 10,000), and where to continue.

        `type` and `status` may be one or several; `tags` all stand in the list "tags" of the job's meta; `error` is a
        part of its last error, in any case; `text` a part of that, the payload or the result; `batch` the id of its
        batch. `finished_after` and `finished_before` are aware datetimes or Unix seconds. `before` is `next` of the
        previous page. Raises InvalidJob, which names the argument.

        Finding finished jobs other than failed ones reads the table down from the latest: 3 ms for 10,000 rows.
        """
        limit = whole("limit", limit, 1, _LARGEST_PAGE)
        if before is not None and not is_possible_id(before, "before"):
            before = -(2**62) if before < 0 else None  # no job is before that, or all are
        which = _filter(type, status, conditions)
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
        most: int | None = None,
        **conditions: Unpack[Conditions],
    ) -> int:
        """The number of jobs that match all these conditions, those of `jobs`, counted up to `most`."""
        which = _filter(type, status, conditions)
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

    def pause(self, type: str, *, force: bool = False) -> bool:
        """Start no more jobs of a type; running ones continue. Returns False if it was paused already.

        A type that no running supervisor takes and no job has is probably mistyped: it raises QueueError unless
        `force` is true. Raises InvalidJob for what cannot be a type.
        """
        return self._paused(type, True, force)

    def resume(self, type: str) -> bool:
        """Start jobs of a paused type again. Returns False if it was not paused."""
        return self._paused(type, False, False)

    def _paused(self, type_: str, paused: bool, force: bool) -> bool:
        from supervisor.ops import commands

        return self._changed(
            lambda operations: commands.pause(operations, type_, paused, operations.statistics.now(), force=force)
        )

    @property
    def schedules(self) -> Schedules:
        """The schedules, and those that are made at run time."""
        return Schedules(self)

    @property
    def batches(self) -> Batches:
        """Batches: how far they are, and closing one that its program has left open. See `Queue.batch`."""
        return Batches(self)

    def _changed(self, work: Callable[[Operations], Answer]) -> Answer:
        return self._asked(self._connections.writer, work)

    def _asked(self, seat: Seat, work: Callable[[Operations], Answer]) -> Answer:
        return self._connections.using(seat, lambda producer: work(producer.operations))


class Schedules:
    """`Queue.schedules`: every supervisor knows a change within a second or so."""

    def __init__(self, queue: Administration) -> None:
        self._queue = queue

    def set(self, name: str, /, *, type: str, **keys: Any) -> bool:
        """Make a schedule of the keys of `[[schedules]]`, or replace one that was made at run time: then its next time
        stays, unless these keys say another. Returns False if it is so already.

        Raises InvalidJob, which names the key, and Conflict for a schedule of a configuration file.
        """
        from supervisor.ops.commands import set_schedule

        keys["type"] = type
        return self._queue._changed(lambda ops: set_schedule(ops, name, keys, ops.statistics.now(), "set"))

    def remove(self, name: str) -> None:
        """Remove one that was made at run time; its jobs stay. Raises QueueError if there is none, and Conflict for one
        of a configuration file.
        """
        from supervisor.ops.commands import remove_schedule

        self._queue._changed(lambda ops: remove_schedule(ops, name, ops.statistics.now()))

    def list(self) -> list[Planned]:
        """All schedules by name, also those of configuration files, whose `definition` is None."""
        return self._queue._asked(self._queue._connections.lister, lambda ops: ops.schedules.planned())


class Typed(Protocol):
    """A task."""

    type: str


OnDone = str | Typed | None


class Batches:
    """`Queue.batches`. Without `Queue.batch`, a batch can be made step by step, also by several programs: open it,
    enqueue jobs with `batch=` its id, close it.
    """

    def __init__(self, queue: Administration) -> None:
        self._queue = queue

    def open(self, on_done: OnDone = None, payload: object = None, *, connection: object = None) -> int:
        """Begin a batch and return its id. See `Queue.batch`. Raises InvalidJob."""
        try:
            type_ = None if on_done is None else checked_type(getattr(on_done, "type", on_done))
        except InvalidJob as error:
            raise InvalidJob("on_done", error.problem) from None
        text = payload_of(payload)
        if connection is not None:
            return self._queue._on(connection).open_batch(connection, type_, text)
        return self._queue._changed(lambda operations: operations.batches.open(type_, text))

    def close(self, batch_id: int, *, connection: object = None) -> None:
        """All its jobs are there: it ends when the last of them has ended, at once if they all have. One that is closed
        already stays as it is. Raises BatchNotFound.
        """
        number = _number(batch_id)
        if connection is not None:
            self._queue._on(connection).close_batch(connection, number)
        else:
            self._queue._changed(lambda operations: operations.batches.close(number))

    def get(self, batch_id: int) -> BatchView:
        """The batch as it is now, with the numbers of its jobs. Raises BatchNotFound."""
        number = _number(batch_id)
        return self._queue._asked(self._queue._connections.lister, lambda operations: operations.batches.get(number))

    def unfinished(self) -> list[BatchView]:
        """The latest 50 that have not ended. One that is open and that no program closes any more is among them."""
        return self._queue._asked(self._queue._connections.lister, lambda operations: operations.batches.latest())


def _number(batch_id: object) -> int:
    return whole("batch_id", batch_id, 1, LAST_ID)


def _filter(type_: str | Iterable[str], status: str | Iterable[str], conditions: Mapping[str, Any]) -> Filter | None:
    """None if no job can match."""
    given = {"types": type_, "statuses": status, **conditions}
    if unknown := given.keys() - _CHECKS.keys():
        raise TypeError(f"{min(unknown)!r} is not a condition; there are {', '.join(Conditions.__annotations__)}")
    found = {name: _CHECKS[name](_NAMES.get(name, name), value) for name, value in given.items() if value is not None}
    return None if found.get("ids") == () else Filter(**found)


def _possible(field: str, ids: Iterable[int]) -> tuple[int, ...]:
    try:
        values = tuple(ids)
    except TypeError:
        raise InvalidJob(field, f"{short(ids)} is not a list of ids") from None
    return tuple(value for value in values if is_possible_id(value, field))


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


def _statuses(field: str, value: str | Iterable[str]) -> tuple[Status, ...]:
    names = _several(field, value)
    if unknown := [name for name in names if name not in list(Status)]:
        raise InvalidJob(field, f"{short(unknown[0])} is not a status; there are {', '.join(Status)}")
    return tuple(map(Status, names))


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "types": _several,
    "statuses": _statuses,
    "unique_key": _text,
    "ids": _possible,
    "tags": _several,
    "error": _text,
    "text": _text,
    "batch": lambda field, value: whole(field, value, 1, LAST_ID),
    "finished_after": moment,
    "finished_before": moment,
}
_NAMES = {"types": "type", "statuses": "status"}  # of the arguments, where they differ
