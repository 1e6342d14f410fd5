"""Whether a worker's process can still run the next job, and what the worker does if not: restore it, ask for a
successor, or exit.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from os import _exit
from time import monotonic
from traceback import clear_frames, print_exception
from typing import Any, NoReturn

from supervisor.domain.settlement import Settlement
from supervisor.system.slot import RecycleReason, Slot
from supervisor.worker.descriptors import Descriptors
from supervisor.worker.handler import AnyHandler
from supervisor.worker.leftovers import Leftovers, has_children
from supervisor.worker.process_state import Changes, ProcessState

EVERY = 0.1  # seconds between two checks while quick jobs are run
CLOSELY = 0.1  # seconds between two close checks if jobs follow each other without a pause
SLOW = 0.01  # seconds: after a run that took this long, a check costs little
_DEEPEST = 20  # links of a chain of exceptions that are examined

EXIT_RUINED = 71  # the slot's text says what happened


class Ruined(Exception):
    """No job can be run or settled in this process any more; the sentence says why."""


class Fitness:
    """Checks the process between two jobs. Created when everything that the worker itself needs is open.

    `leave` makes the worker return what it has not started, and exit; `news` is the supervisor's eventfd. `done` is
    always the number of runs that have ended so far.
    """

    def __init__(self, slot: Slot, news: int, log: Any, leave: Callable[[], None]) -> None:
        self._slot = slot
        self._news = news
        self._log = log
        self._leave = leave
        self._descriptors = Descriptors()
        self.closed = self._descriptors.gone
        self._handler: AnyHandler | None = None
        self._state: ProcessState | None = None
        self._leaking = False  # at the last check more than half of the possible descriptors were open
        self._looked = monotonic()
        self._done = 0  # at the last check
        self._looked_closely = -CLOSELY
        self._done_closely = 0  # at the last close check
        self.leftovers = Leftovers()

    def set_up(self, handler: AnyHandler, own: dict[int, Callable[..., Any]], wakeup: int) -> None:
        """Record the state that every job is to find: from now on, whatever is new was caused by a job. Raises Ruined.

        `own` and `wakeup` are as for ProcessState.
        """
        self._state = ProcessState(own, wakeup)
        self._restore(0, closely=True)
        self._handler = handler
        self.leftovers = Leftovers()

    def due(self, done: int, now: float) -> bool:
        """Whether quick jobs have been running long enough for a check."""
        return now - self._looked >= EVERY and done != self._done

    def seen_closely(self, done: int) -> bool:
        """Whether nothing has been run since the last close check."""
        return done == self._done_closely

    def after(self, settlement: Settlement, done: int, *, always: bool) -> None:
        """Check after a run that may have harmed the process, or that took so long that a check costs little."""
        usage = settlement.usage
        if settlement.failure is not None or always or (usage and (usage.duration or 0.0) >= SLOW):
            self.look(done)

    def look(self, done: int, *, closely: bool = False) -> bool:
        """Restore what handlers have changed: a close check finds all of it. Returns whether something could not be
        restored. Raises Ruined.
        """
        changes = self._restore(done, closely=closely)
        self.leftovers.look()
        if not self._report(changes) and self._leaking:
            self.request_recycle(RecycleReason.LEAKY)
        return bool(changes.lasting)

    def _restore(self, done: int, *, closely: bool) -> Changes:
        number = self._descriptors.changed()
        if number is not None:
            raise Ruined(f"a handler has closed or replaced descriptor {number}, which belongs to the worker")
        closely = closely or monotonic() - self._looked_closely >= CLOSELY
        changes = self._state.restore(closely=closely) if self._state is not None else Changes()
        self._looked, self._done = monotonic(), done
        if closely:
            self._looked_closely, self._done_closely = self._looked, done
        self._leaking = self._descriptors.leaking()
        return changes

    def see_handler(self) -> None:
        """Report what a job has changed in the state that the handler keeps for all jobs."""
        if self._handler is not None and self._handler.changes is not None:
            changes, self._handler.changes = self._handler.changes, None
            self._report(changes)

    def _report(self, changes: Changes) -> bool:
        if changes.restored:
            self._log.warning("process_restored", what=", ".join(changes.restored))
        if changes.lasting:
            self._log.warning("process_changed", what=", ".join(changes.lasting), hint="the worker is replaced")
            self.replace(RecycleReason.CHANGED)
        return bool(changes.lasting)

    def replace(self, why: RecycleReason) -> None:
        """Have a successor take over at once: this process runs no other job."""
        self.request_recycle(why)
        self._leave()

    def request_recycle(self, why: RecycleReason) -> None:
        """Ask for a successor; the worker continues until that one is ready."""
        if self._slot.request_recycle(why):
            os.eventfd_write(self._news, 1)

    def cease(self) -> None:
        """Tell the supervisor that from now on this worker runs no job, because its teardown begins."""
        self._slot.work.cease(monotonic(), alone=not has_children())
        with suppress(OSError):
            os.eventfd_write(self._news, 1)

    def out_of_files(self, error: BaseException, done: int) -> bool:
        """Whether a run has failed because earlier runs have left too many files open. If so, a new worker takes over.

        Not if it was the first run since a check that found few open: then the run itself is the cause. Nor if the
        files are closed again when it ends.
        """
        if done == self._done and not self._leaking:
            return False
        if not (_is_out_of_files(error) or self._descriptors.exhausted()):
            return False
        clear_frames(error.__traceback__)
        if not self._descriptors.exhausted():
            return False
        self._log.warning("descriptors_exhausted", hint="the worker is replaced; its job runs again, uncharged")
        self.replace(RecycleReason.LEAKY)
        return True

    def out_of_memory(self) -> None:
        """A handler has reached the memory limit of this process: a new worker replaces it."""
        self._log.warning("memory_exhausted", hint="the worker is replaced")
        self._leave()


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
