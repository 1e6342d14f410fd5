"""The exceptions of the public API. Every message is one sentence that a user can act on."""

from __future__ import annotations


class QueueError(Exception):
    """Anything that the queue itself reports to a program."""


class InvalidJob(QueueError, ValueError):
    """Bad input to enqueue: nothing was written. `field` names the argument at fault."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class JobNotFound(QueueError, LookupError):
    """No job has this id: it never existed, or retention has deleted it."""

    def __init__(self, job_id: int) -> None:
        super().__init__(f"no job has the id {job_id}")
        self.job_id = job_id


class WaitTimeout(QueueError, TimeoutError):
    """`Queue.wait` gave up; the job goes on."""

    def __init__(self, job_id: int, seconds: float) -> None:
        super().__init__(f"job {job_id} has not finished within {seconds:g} s")
        self.job_id = job_id


class StoreError(QueueError):
    """The database cannot be used; the message says why and what to do. Exit code 3 on the command line."""


class StoreUnavailable(StoreError):
    """Nothing can be done with the database just now, as when its disk is full or it is read-only."""


class StoreBusy(StoreUnavailable):
    """Another program held the write lock for longer than the time allowed; trying again is right."""


class StoreGone(StoreUnavailable):
    """The file that was opened no longer has the database's name, so nothing more is written into it.

    `replaced`: another file has the name now. Else nobody has it, and the file may come back.
    """

    def __init__(self, message: str, *, replaced: bool) -> None:
        super().__init__(message)
        self.replaced = replaced


class Conflict(QueueError):
    """The job's present state does not allow what was asked. Exit code 4 on the command line."""


class ConfigError(QueueError):
    """The configuration cannot be used. `problems` lists every fault found, one line each. Exit code 2."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Retry(Exception):
    """Raised by a handler: run this job again later.

    `after` is a duration ("30s") or seconds; without it the pool's retry policy decides. The attempt
    counts: with none left the job fails.
    """

    def __init__(self, reason: str = "the handler asked for a retry", *, after: str | float | None = None) -> None:
        super().__init__(reason)
        from supervisor.domain.duration import seconds

        self.after = None if after is None else seconds(after)


class Fail(Exception):
    """Raised by a handler: this job can never succeed; fail it now, without further attempts."""

    def __init__(self, reason: str = "the handler gave up") -> None:
        super().__init__(reason)


class ContextClosed(RuntimeError):
    """A handler's context was used where it stands for no run: after the run's end, outside of a job, or in a
    process that the handler has forked.
    """
