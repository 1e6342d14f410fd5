"""What a worker does about the state of its process: restore it, ask for a successor, or exit."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from supervisor.domain.settlement import Settlement
from supervisor.system.slot import RecycleReason, Slot
from supervisor.worker.leftovers import Leftovers
from supervisor.worker.loader import AnyHandler
from supervisor.worker.process_check import SLOW, ProcessCheck
from supervisor.worker.process_state import Changes


class Fitness:
    """Checks the process between two jobs. `leave` makes the worker return what it has not started, and exit; `news`
    is the supervisor's eventfd. `done` is always the number of runs that have ended so far.
    """

    def __init__(self, check: ProcessCheck, slot: Slot, news: int, log: Any, leave: Callable[[], None]) -> None:
        self._check = check
        self._slot = slot
        self._news = news
        self._log = log
        self._leave = leave
        self._handler: AnyHandler | None = None
        self.leftovers = Leftovers()

    def set_up(self, handler: AnyHandler) -> None:
        """From now on, whatever is new was caused by a job."""
        self._handler = handler
        self.leftovers = Leftovers()

    def after(self, settlement: Settlement, done: int, *, always: bool) -> None:
        """Check after a run that may have harmed the process, or that took so long that a check costs little."""
        usage = settlement.usage
        if settlement.failure is not None or always or (usage and (usage.duration or 0.0) >= SLOW):
            self.look(done)

    def look(self, done: int, *, closely: bool = False) -> bool:
        """Restore what handlers have changed. Returns whether something could not be restored. Raises Ruined."""
        changes = self._check.look(done, closely=closely)
        self.leftovers.look()
        if not self._report(changes) and self._check.leaking:
            self.request_recycle(RecycleReason.LEAKY)
        return bool(changes.lasting)

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
            self.request_recycle(RecycleReason.CHANGED)
            self._leave()
        return bool(changes.lasting)

    def request_recycle(self, why: RecycleReason) -> None:
        """Ask for a successor; the worker continues until that one is ready."""
        if self._slot.request_recycle(why):
            os.eventfd_write(self._news, 1)

    def out_of_files(self, error: BaseException, done: int) -> bool:
        """Whether an error was caused by descriptors that earlier jobs left open. If so, a new worker takes over."""
        if not self._check.out_of_files(error, done):
            return False
        self._log.warning("descriptors_exhausted", hint="the worker is replaced; its job runs again, uncharged")
        self.request_recycle(RecycleReason.LEAKY)
        self._leave()
        return True

    def out_of_memory(self) -> None:
        """A handler has reached the memory limit of this process: a new worker replaces it."""
        self._log.warning("memory_exhausted", hint="the worker is replaced")
        self._leave()
