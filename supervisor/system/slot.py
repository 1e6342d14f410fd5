"""One worker's slot on the scoreboard: its state, its runs and the supervisor's requests, as words of shared memory.

`Slot` and its `work` are written by the worker, its `requests` by the supervisor; a `Snapshot` is a copy for readers. A
job is published by writing its token first and its id last, so a reader never confuses two runs, whenever the writer
dies.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from supervisor.system.snapshot import INCARNATION, LAYOUT, NAME, TEXT, decoded
from supervisor.system.snapshot import Cancel as Cancel
from supervisor.system.snapshot import Phase as Phase
from supervisor.system.snapshot import RecycleReason as RecycleReason
from supervisor.system.snapshot import Snapshot as Snapshot
from supervisor.system.snapshot import State as State

SLOT_BYTES = 1024
CANCELS = 16  # requests that can exist at the same time; beyond that, the oldest is dropped


def _at(names: str) -> Iterator[int]:
    """The positions of these words of a slot."""
    return map(Snapshot._fields.index, names.split())


_STATE, _PID, _BEAT, _RECYCLE, _LOST = _at("state_number pid beat recycle_number lost")
_BUSY_SINCE, _PHASE, _CEASED, _ALONE, _OPEN = _at("busy_since phase_number ceased_at alone open")
_JOB, _TOKEN, _STARTED, _DEADLINE, _BATCH = _at("job token started deadline batch")
_EARLIER_OUTPUT, _PROGRESS, _CLAIMS, _DONE, _SETTLED = _at("earlier_output fraction claims done settled")
_LAST_JOB, _LAST_TOKEN, _RUNNING, _PLACES = _at("last_job last_token running concurrency")
_START, _SERVE, _DRAIN, _CANCELS = _at("start serve drain cancels")
_CANCEL_AT = LAYOUT.size // 8  # the cancel requests: a job, its token and the reason each
_CANCEL_WORDS = range(_CANCEL_AT, _CANCEL_AT + 3 * CANCELS, 3)
_MOST_CANCELS = 1 << 62
_BUSY = State.BUSY.value


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

    def begin(self, job: int, token: int, at: float, deadline: float, batch: int = 1, unread: int = 0) -> None:
        """A handler is about to run, with one job or with a `batch` of this size, of which this is the first.
        `unread` are the bytes of earlier runs' output still to be read. The id is written last: only then the rest
        counts.
        """
        ints, floats = self._ints, self._floats
        ints[_TOKEN] = token
        ints[_BATCH] = batch
        ints[_EARLIER_OUTPUT] = unread
        floats[_STARTED] = at
        floats[_DEADLINE] = deadline
        ints[_JOB] = job

    def extend(self, deadline: float) -> None:
        self._floats[_DEADLINE] = deadline

    def progress(self, fraction: float, text: str) -> None:
        self._floats[_PROGRESS] = fraction
        self._write(TEXT, text)

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

    def show(self, first: tuple[int, int, float, float], running: int) -> None:
        """With concurrency: so many jobs run, and this one, (job, token, started, deadline), has to end first."""
        ints = self._ints
        ints[_JOB] = 0
        ints[_RUNNING] = running
        self.begin(*first)

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

    def assign(self, incarnation: str, name: str) -> None:
        """In the supervisor: clear the slot and assign it to a new worker."""
        self.clear()
        self._write(INCARNATION, incarnation)
        self._write(NAME, name)
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
        self._write(TEXT, text)

    def is_idle(self) -> bool:
        """Whether a job that arrives should wake it."""
        return self._ints[_STATE] == State.IDLE or bool(self._ints[_OPEN])

    @property
    def name(self) -> str:
        at, size = NAME
        return decoded(bytes(self._bytes[at : at + size]))

    def read(self) -> Snapshot:
        """A copy; only what is asked of it is decoded, since the supervisor reads every slot several times a second."""
        return Snapshot._make(LAYOUT.unpack_from(self._bytes))
