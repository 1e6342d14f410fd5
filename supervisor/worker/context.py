"""What a handler receives besides its payload."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from supervisor.domain.enqueueing import new_job
from supervisor.domain.errors import ContextClosed, InvalidJob
from supervisor.domain.job import Claim, NewJob
from supervisor.domain.job_stream import encoded_chunk
from supervisor.domain.middleware import hooks_of_process
from supervisor.domain.text import human_size, seconds
from supervisor.domain.values import short
from supervisor.system.chunk_ring import Emitter

if TYPE_CHECKING:
    from typing import Unpack

    from supervisor.domain.enqueueing import JobOptions

MAX_CHILDREN = 10_000  # jobs that one run may enqueue
MAX_CHILDREN_BYTES = 64 << 20  # of all their payloads: they are inserted in one transaction
NO_JOB = Claim(job_id=0, token=0, type="", payload="", attempt=0, max_attempts=None, crashes=0)
_ROUNDING = 1e-6  # tolerance for sums of fractions that fall slightly outside 0 to 1


class JobInterrupted(BaseException):
    """Raised inside a handler whose job was cancelled or has exceeded its time limit.

    Not an Exception, so that a handler's `except Exception` does not swallow it; `finally` blocks run.
    If the handler is a program, `traceback` and `stderr` are its output at the time it had to stop.
    """

    traceback: str | None = None
    stderr: str | None = None


class Board:
    """What a context needs from outside: a place for progress and log lines, and answers about its own run.

    This one is for handlers that run outside a worker: progress and chunks are discarded, nothing is ever cancelled.
    """

    def __init__(
        self, epoch: str = "test", about: Callable[[int], tuple[Any, int | None]] = lambda _: (None, None)
    ) -> None:
        self._epoch = epoch
        self._about = about
        self.extended_to: float | None = None

    def check(self, what: str) -> None:
        """Raises ContextClosed if this is not allowed: `what` names it."""

    def keep(self, line: str) -> None:
        """A line of the run's log."""

    def emit(self, run: Emitter, data: bytes) -> None:
        self.check("emit")
        run.emitted += 1

    def progress(self, fraction: float, text: str) -> None:
        self.check("progress")

    def extend(self, seconds: float) -> None:
        self.check("extend")
        self.extended_to = time.monotonic() + seconds

    def cancelled(self, job: int, token: int) -> bool:
        self.check("cancelled")
        return False

    def epoch(self) -> str:
        self.check("idempotency_key")
        return self._epoch

    def about(self, job: int, what: str) -> tuple[Any, int | None]:
        """The meta of a job and its batch."""
        self.check(what)
        return self._about(job)


class _RunEnded(Board):
    """The board of every context whose run has ended. What is logged goes to the log only."""

    def check(self, what: str) -> None:
        raise ContextClosed(f"ctx.{what}: the run that this context belongs to has ended")


RUN_ENDED = _RunEnded()


class Context:
    """One run of one job. In `setup` and `teardown` there is no job, and `job_id` is 0.

    It is valid until its run ends. Later use, by a thread that is still running, raises ContextClosed, and what is
    logged then belongs to no run. In a process that the handler forks, `progress` and `emit` are ignored, and methods
    that need an answer raise.
    `attempt` counts from 1; `token` identifies this claim; `capabilities` are the pool's; `options` is its table of
    that name; `device` is the worker's own id among the pool's `gpus`, or None without them; `log` is a structlog
    logger that includes job and type; `emitted` is the number of chunks so far.
    """

    __slots__ = (
        "_board",
        "_children",
        "_enqueued",
        "_log",
        "_stored",
        "attempt",
        "capabilities",
        "device",
        "emitted",
        "job_id",
        "options",
        "reported",
        "token",
        "type",
    )

    def __init__(
        self,
        board: Board,
        *,
        claim: Claim = NO_JOB,
        capabilities: tuple[str, ...] = (),
        options: Mapping[str, Any] = MappingProxyType({}),
        device: str | None = None,
    ) -> None:
        self._board = board
        self._log: Any = None
        self.job_id = claim.job_id
        self.type = claim.type
        self.attempt = claim.attempt
        self.token = claim.token
        self.capabilities = capabilities
        self.options = options
        self.device = device
        self._children: list[NewJob] = []
        self._enqueued: list[int] | None = None
        self.reported: float | None = None  # the last progress
        self.emitted = 0

    @property
    def children(self) -> list[NewJob]:
        """The jobs enqueued so far."""
        return list(self._children)

    @property
    def log(self) -> Any:
        """Created on first use: most jobs log nothing."""
        if self._log is None:
            from supervisor.telemetry import events

            self._log = events(keep=self._keep, **self._about())
        return self._log

    def _about(self) -> dict[str, Any]:
        """What every line of the log says about the run."""
        return {"job": self.job_id, "type": self.type, "attempt": self.attempt}

    def _keep(self, line: str) -> None:
        self._board.keep(line)

    def progress(self, fraction: float, text: str = "") -> None:
        """Show how far the job is: `fraction` is 0…1. Cheap enough for every step. Raises ValueError outside that
        range, and for a text that is not a string; a value that is outside only because of rounding is clamped.
        """
        if not isinstance(text, str):
            raise ValueError(f"the text of a progress must be a string, not {short(text)}")
        try:
            reported = float(fraction)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"progress must be a number from 0 to 1, not {short(fraction)}") from None
        if not 0.0 <= reported <= 1.0:
            if not -_ROUNDING <= reported <= 1.0 + _ROUNDING:
                raise ValueError(f"progress must be a number from 0 to 1, not {fraction}")
            reported = min(max(reported, 0.0), 1.0)
        self._board.progress(reported, text)
        self.reported = reported

    def emit(self, chunk: object) -> None:
        """Send a piece of the answer to whoever follows the job now: a text, or any JSON of at most 16 KiB.

        Cheap enough for each token of a text: nothing is written to the database. Those who come later get what is
        still there; nothing of it is part of the result. Ignored in `setup`, and once the job was cancelled. Raises
        InvalidJob (a ValueError) for what is too large, or is not JSON; a job that fails with it is not retried.
        """
        data = encoded_chunk(chunk)
        if self.job_id:
            self._board.emit(self, data)

    @property
    def idempotency_key(self) -> str:
        """The same for every run of this job, and different for every other job: for services that accept such a key.

        The id alone is not enough: after an older copy of the database is restored, ids are used again.
        """
        return f"{self._board.epoch()}-{self.job_id}"

    @property
    def meta(self) -> dict[str, Any]:
        """What was stored with the job when it was enqueued, or {}. Read from the table on first use."""
        return self._read("meta")[0]

    @property
    def batch(self) -> int | None:
        """The id of the batch that the job belongs to, or None. A job that is enqueued with `batch=ctx.batch` belongs
        to it, too: it does not end before that. Read from the table on first use.
        """
        return self._read("batch")[1]

    def _read(self, what: str) -> tuple[dict[str, Any], int | None]:
        try:
            return self._stored
        except AttributeError:
            pass
        meta, batch = self._board.about(self.job_id, what) if self.job_id else (None, None)
        self._stored: tuple[dict[str, Any], int | None] = (meta if isinstance(meta, dict) else {}, batch)
        return self._stored

    @property
    def cancelled(self) -> bool:
        """Whether cancellation of this job was requested. A handler that checks this can clean up and return."""
        return self._board.cancelled(self.job_id, self.token)

    def extend(self, duration: str | float) -> None:
        """Restart this run's time limit from now with this duration: "5m" or seconds. Raises ValueError if invalid."""
        self._board.extend(seconds(duration))

    def enqueue(
        self,
        type: str,
        payload: object = None,
        **options: Unpack[JobOptions],
    ) -> None:
        """Enqueue a job that exists if and only if this job's completion is recorded; see `Queue.enqueue`.

        Validated at once (raises InvalidJob) and inserted with the completion, so it has no id yet, and a `delay`
        counts from then. A run may enqueue 10,000 jobs with 64 MiB of payloads together; exceeding that raises
        InvalidJob.
        """
        self._board.check("enqueue")
        child = new_job(type, payload, **options)
        if hooks := hooks_of_process():
            child = hooks.apply(child)
        self._count(child)
        children = self._children
        children.append(child)
        if self._board is RUN_ENDED:
            # The run ended in between. Either its end has taken the child, or we take it back: a pop is atomic.
            try:
                children.remove(child)
            except ValueError:
                return
            self._board.check("enqueue")

    def _count(self, child: NewJob) -> None:
        """How many jobs and bytes of payloads the run has enqueued. Raises InvalidJob if this one would exceed a limit:
        one transaction that is too large would block other writers.
        """
        jobs, size = self._enqueued = self._enqueued or [0, 0]
        size += len(child.payload.encode())
        if jobs >= MAX_CHILDREN:
            raise InvalidJob("enqueue", f"a run may enqueue at most {MAX_CHILDREN:,} jobs; let those enqueue more")
        if size > MAX_CHILDREN_BYTES:
            most = human_size(MAX_CHILDREN_BYTES)
            raise InvalidJob("payload", f"the payloads of the jobs that a run enqueues may have {most} together")
        self._enqueued[:] = jobs + 1, size

    def close(self) -> tuple[NewJob, ...]:
        """The run has ended: from now on everything raises. Returns what was enqueued, each child once."""
        self._board = RUN_ENDED
        taken, children = [], self._children
        while children:
            try:
                taken.append(children.pop(0))
            except IndexError:  # another thread has taken it back
                break
        return tuple(taken)


class BatchContext(Context):
    """One run of several jobs together, for `handle_batch`. `jobs` has a context for each job, in the order of the
    payloads, with its id, attempt and token. Here `job_id` is 0; `type` is the jobs' common type, or "".
    """

    __slots__ = ("jobs",)

    def __init__(self, board: Board, jobs: Sequence[Context]) -> None:
        first = jobs[0]
        super().__init__(board, capabilities=first.capabilities, options=first.options, device=first.device)
        together = [0, 0]  # all are committed together
        for job in jobs:
            job._enqueued = together
        self.jobs = tuple(jobs)
        types = {job.type for job in jobs}
        self.type = types.pop() if len(types) == 1 else ""

    def _about(self) -> dict[str, Any]:
        return {"jobs": [job.job_id for job in self.jobs]}

    @property
    def cancelled(self) -> bool:
        """Whether the batch as a whole must stop. For one of several jobs, see `jobs`."""
        self._board.check("cancelled")
        return len(self.jobs) == 1 and self.jobs[0].cancelled

    def end(self) -> None:
        """The run has ended. The progress of the batch is that of its jobs."""
        self._board = RUN_ENDED
        if self.reported is not None:
            for job in self.jobs:
                job.reported = self.reported

    @property
    def idempotency_key(self) -> str:
        raise TypeError("in a batch, use the idempotency_key of one of ctx.jobs: each job has its own")

    @property
    def meta(self) -> dict[str, Any]:
        raise TypeError("in a batch, use the meta of one of ctx.jobs: each job has its own")

    @property
    def batch(self) -> int | None:
        raise TypeError("jobs that run together need not be of one batch; use the batch of one of ctx.jobs")

    def emit(self, chunk: object) -> None:
        raise TypeError("in a batch, emit through one of ctx.jobs: a chunk belongs to that job")

    def enqueue(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("in a batch, enqueue through one of ctx.jobs: the new job is committed with that job")
