"""What a slot of the scoreboard shows: a copy for readers, and what some of its words stand for."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

# The texts of a slot: position and bytes of each, and the part of the slot that contains all three.
INCARNATION = (128, 40)
NAME = (168, 80)
TEXT = (256, 256)
TEXTS = slice(128, 512)


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
        return _PHASE_LABELS[self]


_PHASE_LABELS = {
    Phase.SET_UP: "set-up",
    Phase.WARM_UP: "warmup",
    Phase.CANARY: "canary",
    Phase.AFTER_INTERRUPT: "after_interrupt",
}


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
    """A copy of one slot. `deadline` 0 means none, `progress` is None until a handler reports some."""

    state: State
    pid: int
    beat: float
    job: int
    token: int
    started: float
    deadline: float
    claims: int
    batch: int  # jobs in the run that has started
    done: int
    progress: float | None
    unsettled: int  # runs that have ended, but whose outcomes are not committed yet
    last_job: int  # the run that ended last, 0 before the first has ended
    last_token: int
    recycle_reason: RecycleReason
    lost: bool
    busy_since: float  # when it last took jobs after having none
    doubtful: bool  # the run started while there were recent leftovers of earlier jobs
    texts: bytes
    running: int = 0  # jobs that run at the same time, in a worker with concurrency; `job` is one of them
    places: int = 1  # its concurrency
    phase: Phase = Phase.SET_UP  # while it is starting
    ceased_at: float = 0.0  # when its teardown has begun: it runs no job any more; 0 before
    alone: bool = False  # and jobs had left no processes in it

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
        return decoded(self.texts, INCARNATION, TEXTS.start)

    @property
    def name(self) -> str:
        return decoded(self.texts, NAME, TEXTS.start)

    @property
    def text(self) -> str:
        return decoded(self.texts, TEXT, TEXTS.start)


def decoded(memory: bytes | memoryview, field: tuple[int, int], start: int = 0) -> str:
    """A text of a slot, of whose memory this is what follows `start`."""
    at, size = field
    return bytes(memory[at - start : at - start + size]).rstrip(b"\0").decode("utf-8", "replace")
