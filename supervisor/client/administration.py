"""The part of `Queue` that looks at jobs, waits for them, and changes them, by the rules of the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, TypedDict, TypeVar

from supervisor.client.connections import Connections, Seat
from supervisor.client.subscription import Bell, Stream, Subscription, deadline_after, heard
from supervisor.client.watcher import Watcher
from supervisor.domain.errors import InvalidJob, JobNotFound, StoreError, WaitTimeout
from supervisor.domain.intake import is_possible_id, job_id_of, moment, short, waiting_limit, whole
from supervisor.domain.job import Job, JobEvent, Progress, Status
from supervisor.store.base import Engine, Filter, Operations, TransactionalInsert

if TYPE_CHECKING:
    from typing import Unpack

    from supervisor.domain.job_stream import FollowEvent

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

    def progress(self, job_id: int) -> Progress:
        """How far the job is, (fraction, text); a running one's is at most half a second old. Raises JobNotFound."""
        job_id = job_id_of(job_id)
        now = next(self._states(job_id))
        return Progress(now.progress, now.text)

    def wait(self, job_id: int, timeout: float | None = None) -> Job:
        """Wait until the job has finished, however it ended. `timeout` is seconds.

        Raises WaitTimeout when the time is up (the job continues), JobNotFound for an unknown id.
        """
        job_id, limit = job_id_of(job_id), waiting_limit(timeout)
        deadline = deadline_after(limit)
        while True:
            try:
                self._end(job_id, deadline)
            except TimeoutError:
                raise WaitTimeout(job_id, limit or 0.0).explained(self._why_not_started(job_id)) from None
            job = self.job(job_id)
            if job.status.finished:  # nobody has retried it in between
                return job

    def _why_not_started(self, job_id: int) -> str:
        """What keeps the job from starting, such as a mistyped type; "" if that is not known."""
        from supervisor.ops.serving import why_not_started  # imported here: few programs wait in vain

        try:
            return self._asked(self._connections.reader, lambda ops: why_not_started(ops, job_id, self.url))
        except (StoreError, OSError):  # the scoreboards are files
            return ""

    def events(self, job_id: int) -> Iterator[JobEvent]:
        """How the job is now, then each change of its status and progress, and last how it ended.

        Changes that follow each other within some milliseconds may be seen as one. Raises JobNotFound, with the first
        event for an unknown id, and later if the job is deleted.
        """
        yield from self._states(job_id_of(job_id))

    def _states(
        self, job_id: int, deadline: float | None = None, *, only_end: bool = False, just_made: bool = False
    ) -> Iterator[JobEvent]:
        """Raises TimeoutError after the deadline, in monotonic seconds."""
        bell = Bell()
        wanted = Subscription(self._watcher, job_id, bell.ring, only_end=only_end, just_made=just_made)
        if not just_made:  # by this thread: there may be nothing to wait for
            now = self._connections.using(self._connections.reader, lambda producer: producer.events([job_id]))
            wanted.tell(now.get(job_id))
        return heard(wanted, bell, deadline)

    def _end(self, job_id: int, deadline: float | None = None, *, just_made: bool = False) -> JobEvent:
        """How it ends. Of one that was `just_made`, nothing is asked before."""
        *_, last = self._states(job_id, deadline, only_end=True, just_made=just_made)
        return last

    def follow(self, job_id: int, timeout: float | None = None) -> Iterator[FollowEvent]:
        """What becomes of the job, and what its handler emits with `ctx.emit`, from the start of the run to the end.

        `timeout` is seconds for all of it. What a run emits can be read on its host, by the user of its supervisor;
        elsewhere, only the states and the progress come, and `elsewhere` of its event "attempt" is true. Raises
        WaitTimeout when the time is up (the job continues), JobNotFound with the first event for an unknown id, and
        later if the job is deleted.
        """
        job_id, limit = job_id_of(job_id), waiting_limit(timeout)
        bell = Bell()
        stream = Stream(self._watcher, job_id, bell.ring)
        try:
            yield from heard(stream, bell, deadline_after(limit))
        except TimeoutError:
            raise WaitTimeout(job_id, limit or 0.0).explained(self._why_not_started(job_id)) from None

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
        part of its last error, in any case; `text` a part of that, the payload or the result. `finished_after` and
        `finished_before` are aware datetimes or Unix seconds. `before` is `next` of the previous page. Raises
        InvalidJob, which names the argument.

        Finding finished jobs other than failed ones reads the table down from the latest: 3 ms for 10,000 rows.
        """
        limit = whole("limit", limit, 1, _LARGEST_PAGE)
        if before is not None and not is_possible_id(before, "before"):
            before = -(2**62) if before < 0 else None  # no job is before that, or all are
        which = _filter(type, status, **conditions)
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
        which = _filter(type, status, **conditions)
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

    def _changed(self, work: Callable[[Operations], Answer]) -> Answer:
        return self._asked(self._connections.writer, work)

    def _asked(self, seat: Seat, work: Callable[[Operations], Answer]) -> Answer:
        return self._connections.using(seat, lambda producer: work(producer.operations))


def _filter(
    type_: str | Iterable[str],
    status: str | Iterable[str],
    *,
    unique_key: str | None = None,
    ids: Iterable[int] | None = None,
    tags: Iterable[str] = (),
    error: str = "",
    text: str = "",
    finished_after: datetime | float | None = None,
    finished_before: datetime | float | None = None,
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
        finished_after=moment("finished_after", finished_after),
        finished_before=moment("finished_before", finished_before),
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
