"""`Queue.run`: enqueue a job and wait for its result."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from supervisor.domain.errors import JobFailed, QueueError, StoreError, WaitTimeout
from supervisor.domain.intake import require_same, waiting_limit
from supervisor.domain.job import Job, NewJob, Status

if TYPE_CHECKING:
    from supervisor.client.queue import Queue

AGAIN = 0.1  # seconds from a look that has failed to the next one


class ResultUnknown(StoreError):
    """The job `job_id` is in the table, but the database cannot be used any more, and its result is not known.

    Whoever makes the same request again without an idempotency key has a second job.
    """

    def __init__(self, job_id: int, error: StoreError) -> None:
        super().__init__(f"job {job_id} was enqueued, and its result is not known: {error}")
        self.job_id = job_id


@contextlib.contextmanager
def naming(job_id: int) -> Iterator[None]:
    """Errors of the database name this job, which is in the table."""
    try:
        yield
    except StoreError as error:
        raise ResultUnknown(job_id, error) from error


def run(queue: Queue, wanted: NewJob, timeout: float | None, cancel: bool) -> Any:
    """See `Queue.run`. The job is made durable before anybody is told its id without a result."""
    limit = waiting_limit(timeout)
    deadline = None if limit is None else time.monotonic() + limit
    job_id, new = queue._connections.using(queue._connections.writer, lambda producer: producer.put(wanted))
    with naming(job_id):
        try:
            if wanted.once and not new:
                require_same(queue.job(job_id), wanted)
            return _result(queue, job_id, deadline, new)
        except JobFailed:
            make_durable(queue)
            raise
        except BaseException as error:  # also whatever a signal handler raises
            if cancel:
                give_up(queue, job_id)
            if not _is_late(error, deadline):
                raise
            make_durable(queue)
            raise WaitTimeout(job_id, limit or 0.0) from None


def _is_late(error: BaseException, deadline: float | None) -> bool:
    """Whether it is the TimeoutError of our deadline: one that a signal handler raises before is somebody else's."""
    return isinstance(error, TimeoutError) and deadline is not None and time.monotonic() >= deadline


def _result(queue: Queue, job_id: int, deadline: float | None, new: bool) -> Any:
    """Raises TimeoutError after the deadline, in monotonic seconds. Until then, a look that fails is made again;
    without a deadline it raises StoreError, or a database that is gone for good would be waited for without end.
    """
    while True:
        try:
            event = queue._watcher.end(job_id, deadline, just_made=new)
            if event.status is Status.DONE:
                return event.result
            job = queue.job(job_id)
            if job.status.finished:  # nobody has retried it in between
                return result_of(job)
        except StoreError:
            if deadline is None:
                raise
            _rest(deadline)
        new = False


def _rest(deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    time.sleep(min(left, AGAIN))


def result_of(job: Job) -> Any:
    """Of a finished job. Raises JobFailed if it has none."""
    if job.status is not Status.DONE:
        raise JobFailed(job)
    return job.result


def make_durable(queue: Queue) -> None:
    """Raises StoreError."""
    queue._connections.using(queue._connections.writer, lambda producer: producer.make_durable())


def give_up(queue: Queue, job_id: int) -> None:
    """Cancel a job that nobody waits for any longer, unless it has just ended."""
    with contextlib.suppress(QueueError):
        queue.cancel(job_id)
