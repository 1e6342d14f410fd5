"""What the slot of a worker shows: a copy for readers.

The fields of `Snapshot`, in their order, are the words of a slot in the shared memory: 8 bytes each in the machine's
byte order, stored whole. Behind them are three texts. Times are CLOCK_MONOTONIC seconds.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple, get_type_hints


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
        return decoded(self.incarnation_bytes)

    @property
    def name(self) -> str:
        return decoded(self.name_bytes)

    @property
    def text(self) -> str:
        return decoded(self.text_bytes)


_WORDS = "".join({int: "q", float: "d"}.get(kind, "") for kind in get_type_hints(Snapshot).values())
INCARNATION, NAME, TEXT = (256, 40), (296, 80), (376, 256)  # position and bytes
LAYOUT = struct.Struct(f"={_WORDS}{INCARNATION[0] - 8 * len(_WORDS)}x40s80s256s")
_STATES = {state.value: state for state in State}
_PHASES = {phase.value: phase for phase in Phase}
_RECYCLE_REASONS = {reason.value: reason for reason in RecycleReason}


def decoded(text: bytes) -> str:
    return text.rstrip(b"\0").decode("utf-8", "replace")
