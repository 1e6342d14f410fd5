"""One worker's slot on the scoreboard: its state, its runs and the supervisor's requests, as words of shared memory.

The fields of `Snapshot`, in their order, are the words of a slot: 8 bytes each in the machine's byte order, stored
whole. Behind them are three texts and the cancel requests. A job is published by writing its token first and its id
last, so a reader never confuses two runs, whenever the writer dies. Times are CLOCK_MONOTONIC seconds.
"""

from __future__ import annotations

import struct
import time
from enum import IntEnum
from typing import NamedTuple, get_type_hints

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


class Snapshot(NamedTuple):
    """A copy of one slot. What native code may have written in the place of a number of ours is read as the first."""

    # Written by the worker about itself
    state_number: int
    pid: int
    beat: float
    recycle_number: int
    lost: int  # its program has died, or had to be killed
    busy_since: float  # when it last took jobs after having none
    phase_number: int  # while it is starting
    ceased_at: float  # when its teardown has begun: it runs no job any more; 0 before
    alone: int  # and jobs had left no processes in it
    open: int  # a job that arrives should wake it, although it is busy
    # By the worker about its runs
    job: int
    token: int
    started: float
    deadline: float  # 0 means none
    batch: int  # jobs in the run that has started
    doubtful: int  # the run started while there were recent leftovers of earlier jobs, which may end it
    earlier_output: int  # bytes on its stderr that were unread when the run began
    fraction: float  # its progress; below 0 until a handler reports some
    claims: int  # taken and not settled
    done: int  # runs that have ended
    settled: int  # of these, those whose outcomes are committed
    last_job: int  # the run that ended last, 0 before the first has ended
    last_token: int
    running: int  # jobs that run at the same time, in a worker with concurrency; `job` is one of them
    concurrency: int
    # By the supervisor
    start: int
    serve: int
    drain: int
    cancels: int  # requests made so far
    # Written by both
    incarnation_bytes: bytes
    name_bytes: bytes
    text_bytes: bytes

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
        return _decoded(self.incarnation_bytes)

    @property
    def name(self) -> str:
        return _decoded(self.name_bytes)

    @property
    def text(self) -> str:
        return _decoded(self.text_bytes)


# The positions of the words.
_STATE, _PID, _BEAT, _RECYCLE, _LOST, _BUSY_SINCE, _PHASE, _CEASED, _ALONE, _OPEN = range(10)
_JOB, _TOKEN, _STARTED, _DEADLINE, _BATCH, _DOUBTFUL, _EARLIER_OUTPUT, _PROGRESS = range(10, 18)
_CLAIMS, _DONE, _SETTLED, _LAST_JOB, _LAST_TOKEN, _RUNNING, _PLACES = range(18, 25)
_START, _SERVE, _DRAIN, _CANCELS = range(25, 29)
_WORDS = "".join({int: "q", float: "d"}.get(kind, "") for kind in get_type_hints(Snapshot).values())
_INCARNATION, _NAME, _TEXT = (256, 40), (296, 80), (376, 256)  # position and bytes
_LAYOUT = struct.Struct(f"={_WORDS}{_INCARNATION[0] - 8 * len(_WORDS)}x40s80s256s")
_CANCEL_AT = _LAYOUT.size // 8  # the cancel requests: a job, its token and the reason each
_CANCEL_WORDS = range(_CANCEL_AT, _CANCEL_AT + 3 * CANCELS, 3)
_MOST_CANCELS = 1 << 62

_BUSY = State.BUSY.value
_STATES = {state.value: state for state in State}
_PHASES = {phase.value: phase for phase in Phase}
_RECYCLE_REASONS = {reason.value: reason for reason in RecycleReason}


def _decoded(text: bytes) -> str:
    return text.rstrip(b"\0").decode("utf-8", "replace")


class _Part:
    """What all parts of a slot have: its memory, as bytes, integers and floats."""

    __slots__ = ("_bytes", "_floats", "_ints")

    def __init__(self, view: memoryview) -> None:
        self._bytes = view
        self._ints = view.cast("q")
        self._floats = view.cast("d")

    def _write(self, field: tuple[int, int], text: str) -> None:
        at, size = field
        data = text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore").encode()
        self._bytes[at : at + size] = data.ljust(size, b"\0")


class Requests(_Part):
    """What the supervisor asks of the worker. Only `drain` is also called by the worker itself."""

    __slots__ = ()

    def start(self) -> None:
        """The supervisor is ready to see the worker's end: it may start."""
        self._ints[_START] = 1

    @property
    def start_requested(self) -> bool:
        return bool(self._ints[_START])

    def serve(self) -> None:
        """A spare may take jobs from now on: there is a free place. This is never taken back; a signal wakes it."""
        self._ints[_SERVE] = 1

    @property
    def serve_requested(self) -> bool:
        return bool(self._ints[_SERVE])

    def drain(self) -> None:
        """Let the worker finish the current job and exit; a signal wakes it."""
        self._ints[_DRAIN] = 1

    @property
    def drain_requested(self) -> bool:
        return bool(self._ints[_DRAIN])

    def cancel(self, job: int, token: int, reason: Cancel) -> None:
        """Ask for one run of one job to stop; this cannot affect the next run, whose token or id differs.

        Requests for several jobs of a batch may exist at the same time.
        """
        ints = self._ints
        at = self._find_cancel(job, token)
        made = ints[_CANCELS]
        if at is None:
            at = _CANCEL_WORDS[made % CANCELS]
            ints[at] = 0
            made += 1
        ints[at + 1] = token
        ints[at + 2] = reason
        ints[at] = job
        ints[_CANCELS] = made % _MOST_CANCELS  # native code may have written anything there

    def cancel_requested(self, job: int, token: int) -> Cancel:
        """Why this run should stop; NONE if it should not."""
        at = self._find_cancel(job, token) if job and self._ints[_CANCELS] else None
        return Cancel.NONE if at is None else Cancel(self._ints[at + 2])

    @property
    def cancels_made(self) -> int:
        """How many requests were made so far. Only the last CANCELS are kept."""
        return self._ints[_CANCELS]

    def _find_cancel(self, job: int, token: int) -> int | None:
        ints = self._ints
        return next((at for at in _CANCEL_WORDS if ints[at] == job and ints[at + 1] == token), None)


class Work(_Part):
    """The worker's claims and its runs: the current one, and how many have ended. Written by the worker."""

    __slots__ = ()

    def run_together(self, places: int) -> None:
        """It runs as many jobs at the same time."""
        self._ints[_PLACES] = places

    def open(self, whether: bool) -> None:
        """Whether a job that arrives should wake it, although it is busy."""
        self._ints[_OPEN] = whether

    def hold(self, claims: int) -> None:
        """Claims taken and not yet settled."""
        self._ints[_CLAIMS] = claims

    def begin(
        self, job: int, token: int, at: float, deadline: float, batch: int = 1, doubtful: bool = False, unread: int = 0
    ) -> None:
        """A handler is about to run, with one job or with a `batch` of this size, of which this is the first.
        `unread` are the bytes of earlier runs' output still to be read. The id is written last: only then the rest
        counts.
        """
        ints, floats = self._ints, self._floats
        ints[_TOKEN] = token
        ints[_BATCH] = batch
        ints[_DOUBTFUL] = doubtful
        ints[_EARLIER_OUTPUT] = unread
        floats[_STARTED] = at
        floats[_DEADLINE] = deadline
        ints[_JOB] = job

    def extend(self, deadline: float) -> None:
        self._floats[_DEADLINE] = deadline

    def progress(self, fraction: float, text: str) -> None:
        self._floats[_PROGRESS] = fraction
        self._write(_TEXT, text)

    def forget_progress(self) -> None:
        if self._floats[_PROGRESS] >= 0:
            self.progress(-1.0, "")

    def finish(self, done: int) -> None:
        """The handler has returned, with any result: `done` runs have ended so far."""
        ints = self._ints
        ints[_LAST_TOKEN], ints[_LAST_JOB] = ints[_TOKEN], ints[_JOB]
        ints[_DONE] = done
        ints[_JOB] = 0

    def settle(self, done: int) -> None:
        """The worker's main thread has committed the outcomes of `done` runs so far."""
        self._ints[_SETTLED] = done

    def show(self, first: tuple[int, int, float, float], running: int, *, doubtful: bool) -> None:
        """With concurrency: so many jobs run, and this one, (job, token, started, deadline), has to end first."""
        ints = self._ints
        ints[_JOB] = 0
        ints[_RUNNING] = running
        self.begin(*first, doubtful=doubtful)

    def end(self, done: int, last: tuple[int, int], running: int) -> None:
        """With concurrency: `done` runs have ended so far, `last` the latest; so many still run. The run that is shown
        may have ended, too, until `show` is called; not if none runs.
        """
        ints = self._ints
        if not running:
            ints[_JOB] = 0
        ints[_LAST_JOB], ints[_LAST_TOKEN] = last
        ints[_DONE] = done
        ints[_RUNNING] = running

    def cease(self, at: float, *, alone: bool) -> None:
        """Its teardown begins: no job runs any more. `alone`: it has no child processes. The first call counts."""
        if not self._floats[_CEASED]:
            self._ints[_ALONE] = alone
            self._floats[_CEASED] = at

    @property
    def run(self) -> tuple[int, int]:
        """The current job and the token of its claim; 0 and 0 for none."""
        job = self._ints[_JOB]
        return (job, self._ints[_TOKEN]) if job else (0, 0)

    @property
    def earlier_output(self) -> int:
        """Bytes on the worker's stderr that were unread when the current run began, so not its own."""
        return self._ints[_EARLIER_OUTPUT]


class Slot(_Part):
    """One worker's slot, with the worker's own state. The worker writes through it; any process may read."""

    __slots__ = ("requests", "work")

    def __init__(self, view: memoryview) -> None:
        super().__init__(view)
        self.requests = Requests(view)
        self.work = Work(view)

    @classmethod
    def private(cls) -> Slot:
        """One that no other process sees."""
        return cls(memoryview(bytearray(SLOT_BYTES)))

    def assign(self, incarnation: str, name: str) -> None:
        """In the supervisor: clear the slot and assign it to a new worker."""
        self.clear()
        self._write(_INCARNATION, incarnation)
        self._write(_NAME, name)
        self._floats[_PROGRESS] = -1.0
        self._floats[_BEAT] = time.monotonic()
        self._ints[_STATE] = State.STARTING

    def clear(self) -> None:
        self._bytes[:] = bytes(SLOT_BYTES)

    def occupy(self, pid: int) -> None:
        self._ints[_PID] = pid
        self.beat()

    def beat(self) -> None:
        self._floats[_BEAT] = time.monotonic()

    def detach(self) -> None:
        """In a process that a handler has forked: the slot belongs to the worker; use private memory from now on."""
        memory = memoryview(bytearray(SLOT_BYTES))
        for part in (self, self.requests, self.work):
            _Part.__init__(part, memory)

    @property
    def memory(self) -> memoryview:
        return self._bytes

    def state(self, state: State) -> None:
        """The worker's new state. Called with BUSY after a claim, whether it was busy before or not."""
        ints = self._ints
        if state is State.BUSY and ints[_STATE] != _BUSY:
            self._floats[_BUSY_SINCE] = time.monotonic()
        ints[_STATE] = state

    def enter(self, phase: Phase) -> None:
        """What it does next to become ready. If that ends the process, the supervisor knows what did."""
        self._ints[_PHASE] = phase

    def request_recycle(self, why: RecycleReason) -> bool:
        """Ask for a successor. False if that was done before."""
        before, self._ints[_RECYCLE] = self._ints[_RECYCLE], why
        return before != why

    def lose(self, text: str) -> None:
        """Its program has died, or had to be killed; the worker exits. The text says why."""
        self._ints[_LOST] = 1
        self.tell(text)

    def give_up(self, text: str) -> None:
        """It cannot be set up; the text says why."""
        self.tell(text)
        self._ints[_STATE] = State.BROKEN

    def tell(self, text: str) -> None:
        """Record in words what is wrong."""
        self._write(_TEXT, text)

    def is_idle(self) -> bool:
        """Whether a job that arrives should wake it."""
        return self._ints[_STATE] == State.IDLE or bool(self._ints[_OPEN])

    @property
    def name(self) -> str:
        at, size = _NAME
        return _decoded(bytes(self._bytes[at : at + size]))

    def read(self) -> Snapshot:
        """A copy; only what is asked of it is decoded, since the supervisor reads every slot several times a second."""
        return Snapshot._make(_LAYOUT.unpack_from(self._bytes))
