"""What some words of a slot stand for."""

from __future__ import annotations

from enum import IntEnum


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
