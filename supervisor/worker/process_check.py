"""Whether a worker's process can still run the next job."""

from __future__ import annotations

import errno
from collections.abc import Callable
from os import _exit
from time import monotonic
from traceback import clear_frames, print_exception
from typing import Any, NoReturn

from supervisor.system.slot import Slot
from supervisor.worker.descriptors import Descriptors
from supervisor.worker.process_state import Changes, ProcessState

EVERY = 0.1  # seconds between two checks while quick jobs are run
CLOSELY = 0.1  # seconds between two close checks if jobs follow each other without a pause
SLOW = 0.01  # seconds: after a run that took this long, a check costs little
_DEEPEST = 20  # links of a chain of exceptions that are examined


EXIT_RUINED = 71  # the slot's text says what happened


class Ruined(Exception):
    """No job can be run or settled in this process any more; the sentence says why."""


class ProcessCheck:
    """Created when everything that the worker itself needs is open; `set_up` is called when its handler is set up.

    `done` is always the number of runs that have ended so far.
    """

    def __init__(self) -> None:
        self._descriptors = Descriptors()
        self.closed = self._descriptors.gone
        self.leaking = False  # at the last check more than half of the possible descriptors were open
        self._state: ProcessState | None = None
        self._looked = monotonic()
        self._done = 0  # at the last check
        self._looked_closely = -CLOSELY
        self._done_closely = 0  # at the last close check

    def set_up(self, own: dict[int, Callable[..., Any]], wakeup: int) -> None:
        """Record the state that every job is to find. Raises Ruined."""
        self._state = ProcessState(own, wakeup)
        self.look(0, closely=True)

    def due(self, done: int, now: float) -> bool:
        """Whether quick jobs have been running long enough for a check."""
        return now - self._looked >= EVERY and done != self._done

    def seen(self, done: int) -> bool:
        """Whether nothing has been run since the last check."""
        return done == self._done

    def seen_closely(self, done: int) -> bool:
        """The same for the last close check."""
        return done == self._done_closely

    def look(self, done: int, *, closely: bool = False) -> Changes:
        """Restore what handlers have changed: a close check finds all of it. Raises Ruined."""
        number = self._descriptors.changed()
        if number is not None:
            raise Ruined(f"a handler has closed or replaced descriptor {number}, which belongs to the worker")
        closely = closely or monotonic() - self._looked_closely >= CLOSELY
        changes = self._state.restore(closely=closely) if self._state is not None else Changes()
        self._looked, self._done = monotonic(), done
        if closely:
            self._looked_closely, self._done_closely = self._looked, done
        self.leaking = self._descriptors.leaking()
        return changes

    def out_of_files(self, error: BaseException, done: int) -> bool:
        """Whether a run has failed because earlier runs have left too many files open.

        Not if it was the first run since a check that found few open: then the run itself is the cause. Nor if the
        files are closed again when it ends.
        """
        if self.seen(done) and not self.leaking:
            return False
        if not (_is_out_of_files(error) or self._descriptors.exhausted()):
            return False
        clear_frames(error.__traceback__)
        return self._descriptors.exhausted()


def leave_ruined(error: BaseException, slot: Slot, log: Any) -> NoReturn:
    """End the process at once. The supervisor handles what is not committed."""
    why = str(error) if isinstance(error, Ruined) else f"{type(error).__name__}: {error}"
    slot.tell(why)
    try:
        if not isinstance(error, Ruined):
            print_exception(error)
        log.error("worker_ruined", error=why)
    finally:
        _exit(EXIT_RUINED)


def _is_out_of_files(error: BaseException | None) -> bool:
    for _ in range(_DEEPEST):
        if error is None:
            break
        if isinstance(error, OSError) and error.errno == errno.EMFILE:
            return True
        error = error.__cause__ or error.__context__
    return False
