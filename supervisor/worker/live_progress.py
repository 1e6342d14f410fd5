"""What a handler reports of its progress, in the table for its application."""

from __future__ import annotations

from time import monotonic, time

from supervisor.domain.errors import StoreError, StoreUnavailable
from supervisor.system.slot import Slot
from supervisor.worker.exchange import Exchange

EVERY = 0.5  # seconds between two writes, and the age from which on the progress of a run is written


class LiveProgress:
    """Handlers report to the slot as often as they like; the heartbeat thread copies that to the table.

    A job that reports nothing, or ends within EVERY seconds, costs no write.
    """

    def __init__(self, slot: Slot, store: Exchange) -> None:
        self._slot = slot
        self._store = store
        self._changed = False  # something was reported since the last write
        self._watched = False  # the heartbeat thread looks every EVERY seconds
        self._look_at = 0.0

    def reported(self) -> bool:
        """The slot has news, from any thread. Returns whether the heartbeat thread must be told. Cheap."""
        self._changed = True
        if self._watched:
            return False
        self._watched = True
        return True

    def look(self, now: float) -> float | None:
        """Write what is new. Called by the heartbeat thread at `now`, monotonic seconds; returns the seconds until it
        should be called again, None if nothing is reported.
        """
        if not self._watched:
            return None
        self._look_at = self._look_at or now + EVERY
        if now < self._look_at:
            return self._look_at - now
        self._watched = False  # first: what is reported from now on tells us
        if not self._changed:
            self._look_at = 0.0
            return None
        self._watched, self._changed = True, False
        if not self._written():
            self._changed = True
        self._look_at = monotonic() + EVERY
        return EVERY

    def _written(self) -> bool:
        """False if it is to be written later."""
        run = self._slot.read()
        if not run.job or run.progress is None:
            return True
        young = monotonic() - run.started < EVERY
        if young or self._slot.work.run != (run.job, run.token):  # with another run the rest may be another's, too
            return False
        self._slot.beat()
        try:
            self._store.show_progress((run.job, run.token), run.batch, run.progress, run.text, time())
        except StoreUnavailable:
            return False
        except StoreError:  # the application's database refuses it: the job goes on without
            return True
        return True
