"""What a worker does about the state of its process: it puts back, asks for a successor, or leaves."""

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
    """Looks at the process between two jobs. `leave` makes the worker give back what it has not begun, and end; `news`
    is the supervisor's eventfd. `done` is always how many runs have ended so far.
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
        """From now on whatever is new is a job's."""
        self._handler = handler
        self.leftovers = Leftovers()

    def after(self, settlement: Settlement, done: int, *, always: bool) -> None:
        """Look after a run that may have harmed the process, or that took so long that a look costs little."""
        usage = settlement.usage
        if settlement.failure is not None or always or (usage and (usage.duration or 0.0) >= SLOW):
            self.look(done)

    def look(self, done: int, *, closely: bool = False) -> bool:
        """Put back what handlers have changed. Whether something could not be put back. Raises Ruined."""
        changes = self._check.look(done, closely=closely)
        self.leftovers.look()
        if not self._report(changes) and self._check.leaking:
            self.request_recycle(RecycleReason.LEAKY)
        return bool(changes.lasting)

    def see_handler(self) -> None:
        """What a job has changed in what the handler keeps for all of them is the same to the others."""
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
        """Ask for a successor; the worker goes on until that is ready."""
        if self._slot.request_recycle(why):
            os.eventfd_write(self._news, 1)

    def out_of_files(self, error: BaseException, done: int) -> bool:
        """Whether an error is owed to descriptors that earlier jobs have left open: then a fresh worker takes over."""
        if not self._check.out_of_files(error, done):
            return False
        self._log.warning("descriptors_exhausted", hint="the worker is replaced, its job runs again uncharged")
        self.request_recycle(RecycleReason.LEAKY)
        self._leave()
        return True

    def out_of_memory(self) -> None:
        """A handler has met the limit of this process's memory: a fresh one takes its place."""
        self._log.warning("memory_exhausted", hint="the worker is replaced")
        self._leave()
