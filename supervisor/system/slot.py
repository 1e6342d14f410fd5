"""One worker's slot on the scoreboard: its state, its runs and the supervisor's requests, as words of shared memory.

`Page` declares the fields; each is stored whole, in 8 bytes of the machine's byte order. The worker and the supervisor
set single fields of `Slot.page` directly; what takes several steps is a method of `Slot`. Readers take a `Snapshot`.
A job is published by writing its token first and its id last, so a reader never confuses two runs, whenever the writer
dies. Times are CLOCK_MONOTONIC seconds.
"""

from __future__ import annotations

import ctypes
import time
from enum import IntEnum
from typing import Annotated, Any

from supervisor.system.mappings import fields_from_annotations

SLOT_BYTES = 1024
CANCELS = 16  # requests that can exist at the same time; beyond that, the oldest is dropped


class State(IntEnum):
    FREE = 0
    STARTING = 1
    IDLE = 2
    BUSY = 3
    DRAINING = 4
    LEFT = 5  # exited as intended
    BROKEN = 6  # could not be set up; the text says why
    SPARE = 7  # set up; it takes no job until the supervisor lets it


PRESENT = (State.STARTING, State.IDLE, State.BUSY, State.DRAINING, State.SPARE)


def pool_of(worker: str) -> str:
    """The pool of a worker, from its name: `tag` for `tag-2`."""
    return worker.rpartition("-")[0]


class Phase(IntEnum):
    """What a worker does that runs no job."""

    SET_UP = 0
    WARM_UP = 1
    CANARY = 2
    AFTER_INTERRUPT = 3  # no set-up: the handler is asked whether what was interrupted is quiet

    @property
    def label(self) -> str:
        """As in the sentences for people."""
        return ("set-up", "warmup", "canary", "after_interrupt")[self]


class RecycleReason(IntEnum):
    """Why a worker asks for a successor."""

    NOT = 0
    OLD = 1  # near max_jobs_per_worker
    LARGE = 2  # over max_memory
    LEAKY = 3  # many descriptors stay open after its jobs
    CHANGED = 4  # a handler has changed its process in a way that cannot be undone
    FAR_LARGE = 5  # so far over max_memory that it cannot wait for its successor
    INTERRUPTED = 6  # what a run that was interrupted has begun may go on


class Cancel(IntEnum):
    """Why a running job is asked to stop."""

    NONE = 0
    REQUESTED = 1  # it was cancelled
    TIMEOUT = 2  # it has exceeded its time limit


@fields_from_annotations
class _CancelRequest(ctypes.Structure):
    job: int
    token: int
    reason: int


@fields_from_annotations
class Page(ctypes.Structure):
    """The fields of a slot. What native code may have written in the place of a number of ours is read as the first."""

    # Written by the worker about itself
    state_number: int
    pid: int
    beat: float
    recycle_number: int
    lost: int  # its program has died, or had to be killed; the text says why
    busy_since: float  # when it last took jobs after having none
    phase_number: int  # what it does to become ready: if that ends the process, the supervisor knows what did
    ceased_at: float  # when its teardown has begun: it runs no job any more; 0 before
    alone: int  # and jobs had left no processes in it
    open: int  # a job that arrives should wake it, although it is busy
    # By the worker about its runs
    job: int
    token: int
    started: float
    deadline: float  # 0 means none
    batch: int  # jobs in the run that has started
    earlier_output: int  # bytes on its stderr that were unread when the run began, so not its own
    fraction: float  # its progress; below 0 until a handler reports some
    claims: int  # taken and not settled
    done: int  # runs that have ended
    settled: int  # of these, those whose outcomes are committed
    last_job: int  # the run that ended last, 0 before the first has ended
    last_token: int
    running: int  # jobs that run at the same time, in a worker with concurrency; `job` is one of them
    concurrency: int
    # By the supervisor
    start: int  # it is ready to see the worker's end: the worker may start
    serve: int  # a spare may take jobs from now on: never taken back; a signal wakes it
    drain: int  # finish the current job, then exit; a signal wakes it. The worker sets this, too
    cancels: int  # requests made so far; only the last CANCELS are kept
    unused: Annotated[bytes, ctypes.c_char * 32]
    # Written by both
    incarnation_bytes: Annotated[bytes, ctypes.c_char * 40]
    name_bytes: Annotated[bytes, ctypes.c_char * 80]
    text_bytes: Annotated[bytes, ctypes.c_char * 256]
    cancel_requests: Annotated[Any, _CancelRequest * CANCELS]

    @property
    def state(self) -> State:
        return _STATES.get(self.state_number, State.FREE)

    @property
    def phase(self) -> Phase:
        return _PHASES.get(self.phase_number, Phase.SET_UP)

    @property
    def recycle_reason(self) -> RecycleReason:
        return _RECYCLE_REASONS.get(self.recycle_number, RecycleReason.NOT)

    @property
    def is_idle(self) -> bool:
        """Whether a job that arrives should wake it."""
        return self.state_number == State.IDLE or bool(self.open)

    @property
    def run(self) -> tuple[int, int]:
        """The current job and the token of its claim; 0 and 0 for none."""
        job = self.job
        return (job, self.token) if job else (0, 0)

    @property
    def progress(self) -> float | None:
        return self.fraction if self.fraction >= 0 else None

    @property
    def unsettled(self) -> int:
        """Runs that have ended, but whose outcomes are not committed yet."""
        return max(0, self.done - self.settled)

    @property
    def places(self) -> int:
        """Its concurrency."""
        return max(1, self.concurrency)

    @property
    def together(self) -> int:
        """The runs any of which may be the cause if the worker dies now. With concurrency, an ended run that is not
        committed is one of them.
        """
        if self.places > 1:
            return self.running + self.unsettled
        return self.batch if self.job else 1

    @property
    def incarnation(self) -> str:
        return self.incarnation_bytes.decode("utf-8", "replace")

    @property
    def name(self) -> str:
        return self.name_bytes.decode("utf-8", "replace")

    @property
    def text(self) -> str:
        return self.text_bytes.decode("utf-8", "replace")

    def write(self, field: str, text: str) -> None:
        """Store a text in a field, cut to its size. A NUL would end it."""
        data = text.replace("\0", "\ufffd").encode("utf-8", "replace")[: getattr(Page, field).size]
        setattr(self, field, data.decode("utf-8", "ignore").encode())

    def cancel_requested(self, job: int, token: int) -> Cancel:
        """Why this run should stop; NONE if it should not."""
        found = self.find_cancel(job, token) if job and self.cancels else None
        return Cancel.NONE if found is None else Cancel(found.reason)

    def find_cancel(self, job: int, token: int) -> Any | None:
        return next((one for one in self.cancel_requests if one.job == job and one.token == token), None)


_STATES = {state.value: state for state in State}
_PHASES = {phase.value: phase for phase in Phase}
_RECYCLE_REASONS = {reason.value: reason for reason in RecycleReason}


class Snapshot(Page):
    """A copy of a page, for readers."""


class Slot:
    """One worker's slot. `page` is live; readers take a copy."""

    __slots__ = ("memory", "page")

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory
        self.page = Page.from_buffer(memory)

    def read(self) -> Snapshot:
        return Snapshot.from_buffer_copy(self.memory)

    def detach(self) -> None:
        """In a process that a handler has forked: the slot belongs to the worker; use private memory from now on."""
        Slot.__init__(self, memoryview(bytearray(SLOT_BYTES)))

    # The supervisor

    def assign(self, incarnation: str, name: str) -> None:
        """Clear the slot and assign it to a new worker."""
        self.clear()
        page = self.page
        page.write("incarnation_bytes", incarnation)
        page.write("name_bytes", name)
        page.fraction = -1.0
        page.beat = time.monotonic()
        page.state_number = State.STARTING

    def clear(self) -> None:
        self.memory[:] = bytes(SLOT_BYTES)

    def cancel(self, job: int, token: int, reason: Cancel) -> None:
        """Ask for one run of one job to stop; this cannot affect the next run, whose token or id differs.

        Requests for several jobs of a batch may exist at the same time.
        """
        page = self.page
        request = page.find_cancel(job, token)
        if request is None:
            request = page.cancel_requests[page.cancels % CANCELS]
            request.job = 0
            page.cancels += 1
        request.token = token
        request.reason = reason
        request.job = job

    # The worker, about itself

    def beat(self) -> None:
        self.page.beat = time.monotonic()

    def state(self, state: State) -> None:
        """The worker's new state. Called with BUSY after a claim, whether it was busy before or not."""
        page = self.page
        if state is State.BUSY and page.state_number != state:
            page.busy_since = time.monotonic()
        page.state_number = state

    def request_recycle(self, why: RecycleReason) -> bool:
        """Ask for a successor. False if that was done before."""
        before, self.page.recycle_number = self.page.recycle_number, why
        return before != why

    def tell(self, text: str) -> None:
        """Record in words what is wrong. With State.BROKEN: why it cannot be set up."""
        self.page.write("text_bytes", text)

    def cease(self, at: float, *, alone: bool) -> None:
        """Its teardown begins: no job runs any more. `alone`: it has no child processes. The first call counts."""
        if not self.page.ceased_at:
            self.page.alone = alone
            self.page.ceased_at = at

    # The worker, about its runs

    def begin(self, job: int, token: int, at: float, deadline: float, batch: int = 1, unread: int = 0) -> None:
        """A handler is about to run, with one job or with a `batch` of this size, of which this is the first.
        `unread` are the bytes of earlier runs' output still to be read.
        """
        page = self.page
        page.token = token
        page.batch = batch
        page.earlier_output = unread
        page.started = at
        page.deadline = deadline
        page.job = job  # last: only now the rest counts

    def progress(self, fraction: float, text: str) -> None:
        """A negative fraction forgets what was reported."""
        if fraction >= 0 or self.page.fraction >= 0:
            self.page.fraction = fraction
            self.page.write("text_bytes", text)

    def finish(self, done: int) -> None:
        """The handler has returned, with any result: `done` runs have ended so far."""
        page = self.page
        page.last_token, page.last_job = page.token, page.job
        page.done = done
        page.job = 0

    def show(self, first: tuple[int, int, float, float], running: int) -> None:
        """With concurrency: so many jobs run, and this one, (job, token, started, deadline), has to end first."""
        self.page.job = 0
        self.page.running = running
        self.begin(*first)

    def end(self, done: int, last: tuple[int, int], running: int) -> None:
        """With concurrency: `done` runs have ended so far, `last` the latest; so many still run. The run that is shown
        may have ended, too, until `show` is called; not if none runs.
        """
        page = self.page
        if not running:
            page.job = 0
        page.last_job, page.last_token = last
        page.done = done
        page.running = running
