"""Whether a worker's process is still fit for the next job."""

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

EVERY = 0.1  # seconds between two looks while quick jobs are run
CLOSELY = 0.1  # seconds between two close looks, where jobs follow each other without a pause
SLOW = 0.01  # seconds: after a run that took as long, a look costs little
_DEEPEST = 20  # links of a chain of exceptions that are looked at


EXIT_RUINED = 71  # the slot's text says what has happened


class Ruined(Exception):
    """No job can be run or settled in this process any more; the sentence says why."""


class ProcessCheck:
    """Made when all that the worker itself needs is open; `set_up` is called when its handler is set up.

    `done` is always how many runs have ended so far.
    """

    def __init__(self) -> None:
        self._descriptors = Descriptors()
        self.closed = self._descriptors.gone
        self.leaking = False  # at the last look more than half of the descriptors that can be open were
        self._state: ProcessState | None = None
        self._looked = monotonic()
        self._done = 0  # at the last look
        self._looked_closely = -CLOSELY
        self._done_closely = 0  # at the last close look

    def set_up(self, own: dict[int, Callable[..., Any]], wakeup: int) -> None:
        """What the process is like now is what every job finds. Raises Ruined."""
        self._state = ProcessState(own, wakeup)
        self.look(0, closely=True)

    def due(self, done: int, now: float) -> bool:
        """Whether quick jobs have been run for so long that a look is due."""
        return now - self._looked >= EVERY and done != self._done

    def seen(self, done: int) -> bool:
        """Whether nothing has been run since the last look."""
        return done == self._done

    def seen_closely(self, done: int) -> bool:
        """The same since the last close look."""
        return done == self._done_closely

    def look(self, done: int, *, closely: bool = False) -> Changes:
        """Put back what handlers have changed: a close look finds all of it. Raises Ruined."""
        number = self._descriptors.changed()
        if number is not None:
            raise Ruined(f"a handler has closed or replaced descriptor {number}, which is the worker's own")
        closely = closely or monotonic() - self._looked_closely >= CLOSELY
        changes = self._state.restore(closely=closely) if self._state is not None else Changes()
        self._looked, self._done = monotonic(), done
        if closely:
            self._looked_closely, self._done_closely = self._looked, done
        self.leaking = self._descriptors.leaking()
        return changes

    def out_of_files(self, error: BaseException, done: int) -> bool:
        """Whether a run has failed because runs before it have left too many files open.

        Not if it was the first since a look that found few: then it was its own doing. Nor if the files are closed
        again with its end.
        """
        if self.seen(done) and not self.leaking:
            return False
        if not (_is_out_of_files(error) or self._descriptors.exhausted()):
            return False
        clear_frames(error.__traceback__)
        return self._descriptors.exhausted()


def leave_ruined(error: BaseException, slot: Slot, log: Any) -> NoReturn:
    """End the process at once. What is not committed is the supervisor's affair."""
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
