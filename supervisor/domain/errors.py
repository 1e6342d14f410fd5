"""The exceptions of the public API. Every message is one sentence that a user can act on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.domain.text import LONGEST_DELAY, human, seconds

if TYPE_CHECKING:
    from typing import Self

    from supervisor.domain.job import Job


class QueueError(Exception):
    """Any error that the queue itself reports to a program."""


class InvalidJob(QueueError, ValueError):
    """Invalid input to enqueue: nothing was written. `field` names the invalid argument."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class JobNotFound(QueueError, LookupError):
    """No job has this id: it never existed, or retention has deleted it.

    `deleted`: it was there when somebody began to wait for it.
    """

    def __init__(self, job_id: int, *, deleted: bool = False) -> None:
        if job_id.bit_length() > 1000:  # Python refuses to write some thousand digits
            problem = "no job has so large an id"
        else:
            problem = f"job {job_id} was deleted before it had finished" if deleted else f"no job has the id {job_id}"
        super().__init__(problem)
        self.deleted = deleted
        self.job_id = job_id


class BatchNotFound(QueueError, LookupError):
    """No batch has this id: it never existed, or was deleted when all of its jobs had been."""

    def __init__(self, batch: int) -> None:
        super().__init__(f"no batch has the id {batch}")
        self.batch = batch


class QueueFull(QueueError):
    """`max_waiting` jobs of the type with at least its priority wait already: nothing was enqueued."""

    def __init__(self, type: str, max_waiting: int) -> None:
        super().__init__(f"{max_waiting} jobs of type {type!r} are waiting already, which is the maximum")
        self.type = type
        self.max_waiting = max_waiting


class JobFailed(QueueError):
    """`Queue.run`: the job has ended without a result. `job` says how."""

    def __init__(self, job: Job) -> None:
        reason = f": {job.last_error}" if job.last_error else ""
        super().__init__(f"job {job.id} {_ENDS.get(job.status, f'is {job.status}')}{reason}")
        self.job = job


_ENDS = {"failed": "has failed", "cancelled": "was cancelled", "quarantined": "is quarantined"}


class WaitTimeout(QueueError, TimeoutError):
    """`Queue.wait`, `Queue.run` or `Queue.follow` stopped waiting; the job continues.

    If it has not started, and the reason is known, `hint` is that; otherwise it is empty.
    """

    def __init__(self, job_id: int, seconds: float) -> None:
        super().__init__(f"job {job_id} has not finished within {human(seconds)}")
        self.job_id = job_id
        self.hint = ""

    def explained(self, hint: str) -> Self:
        """The same error with a hint."""
        if hint:
            self.hint, self.args = hint, (f"{self.args[0]}: {hint}",)
        return self


class StoreError(QueueError):
    """The database cannot be used; the message says why and what to do. Exit code 3 on the command line."""


class StoreOutdated(StoreError):
    """The job tables are from before the first release. They are not migrated."""


class NoTables(StoreError):
    """There is no database, or it has no job tables yet."""


class NothingToAdopt(StoreError):
    """The table is job-supervisor's already."""


class StoreUnavailable(StoreError):
    """The database is unavailable now, for example because its disk is full or it is read-only."""


class WriteFailed(StoreUnavailable):
    """A write to the database's files failed, as on a full disk: the transaction is certain not to be committed.

    SQLite writes the mark of a commit last, and a reader ignores a log without it. An error that comes later, when the
    log is synchronized, leaves open whether a power loss keeps the transaction.
    """


class StoreBusy(StoreUnavailable):
    """Another transaction held the write lock for longer than the time allowed; trying again may succeed.

    `who` names its session, if that is known; `here`: it is one of this process, or of one that this has started.
    """

    def __init__(self, message: str, *, who: str = "", here: bool = False) -> None:
        super().__init__(f"{message}: {who} holds what it waits for" if who else message)
        self.who = who
        self.here = here


class LeaseHeld(StoreError):
    """A supervisor on another host that seemed to be dead is not."""


class StoreGone(StoreUnavailable):
    """The file that was opened no longer has the database's name, so nothing more is written to it.

    `replaced`: another file has the name now. Otherwise the name is unused, and the file may come back.
    """

    def __init__(self, message: str, *, replaced: bool) -> None:
        super().__init__(message)
        self.replaced = replaced


class StoreMoved(StoreError):
    """The jobs of this database were moved to another one, `url`, which has no password in it."""

    def __init__(self, where: str, url: str) -> None:
        super().__init__(f"{where}: the jobs were moved to {url}; use that URL")
        self.url = url


class EnqueueUncertain(StoreUnavailable):
    """The connection was lost during the commit, and the server cannot tell whether the jobs were stored. Enqueueing
    them again may store them twice, unless they have unique keys.
    """


class Conflict(QueueError):
    """The current state does not allow the request. Exit code 4 on the command line.

    `duplicate_of`: the unfinished job whose unique key keeps another one from being retried.
    """

    def __init__(self, message: str, *, duplicate_of: int | None = None) -> None:
        super().__init__(message)
        self.duplicate_of = duplicate_of


class DuplicateJob(Conflict):
    """An enqueue with `on_duplicate="error"`: the job `job_id` has the unique key. Nothing was enqueued."""

    def __init__(self, job_id: int) -> None:
        super().__init__(f"job {job_id} has this unique key; nothing was enqueued", duplicate_of=job_id)
        self.job_id = job_id


class ConfigError(QueueError):
    """The configuration is invalid. `problems` lists every problem found, one line each. Exit code 2."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class InvalidOption(QueueError, ValueError):
    """An option does not fit what it is meant for; nothing was changed. Exit code 2 on the command line."""


class Retry(Exception):
    """Raised by a handler: run this job again later.

    `after` is a duration ("30s") or seconds; without it the pool's retry policy decides. The attempt
    counts: with none left the job fails. With `whole_key`, no other job with its concurrency_key starts before `after`
    is over, or, for a job without one, no other job of its type, if that has limits: what a service means that
    answers "429, Retry-After".
    """

    def __init__(
        self,
        reason: str = "the handler asked for a retry",
        *,
        after: str | float | None = None,
        whole_key: bool = False,
    ) -> None:
        super().__init__(reason)
        self.after = None if after is None else seconds(after)
        self.whole_key = whole_key


class Fail(Exception):
    """Raised by a handler: this job can never succeed; fail it now, without further attempts."""

    def __init__(self, reason: str = "the handler gave up") -> None:
        super().__init__(reason)


class Snooze(Exception):
    """Raised by a handler: run this job again after `delay`, "30s" or seconds. The attempt does not count.

    Raises ValueError for a delay that is not a duration, or is longer than a hundred years.
    """

    def __init__(self, delay: str | float) -> None:
        self.delay = seconds(delay)
        if self.delay > LONGEST_DELAY:
            raise ValueError(f"{delay!r} is too long; a job can be snoozed for at most a hundred years")
        super().__init__(f"snoozed for {human(self.delay)}")


class ContextClosed(RuntimeError):
    """A handler's context was used while it belongs to no run: after the run's end, outside of a job, or in a
    process that the handler has forked.
    """


def holdable(error: BaseException) -> BaseException:
    """The error itself, or another one in place of a StopIteration, for which who awaits it would wait for ever, and of
    a GeneratorExit, which would close the coroutines that await it.
    """
    if not isinstance(error, (StopIteration, GeneratorExit)):
        return error
    stopped = RuntimeError(f"the call raised {type(error).__name__}")
    stopped.__cause__ = error
    return stopped
