"""The worker's second thread: it stamps the beat, and lets nothing wait behind a slow job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from supervisor.system import signals
from supervisor.system.scoreboard import Slot

PATIENCE = 0.05  # seconds that claims may wait behind a running job
REST = 2.0  # seconds without a batch after which the thread sleeps between beats


class Pulse(threading.Thread):
    """Beats every `interval` seconds, and calls `hand_back` when a job outlasts PATIENCE.

    While batches come in it looks every PATIENCE seconds; when none has come for REST it sleeps from
    beat to beat, so that an idle worker costs next to nothing.
    """

    def __init__(self, slot: Slot, interval: float, hand_back: Callable[[], None]) -> None:
        super().__init__(name="pulse", daemon=True)
        self._slot = slot
        self._interval = interval
        self._hand_back = hand_back
        self._wake = threading.Event()
        self._last_batch = 0.0
        self._batch_began = 0.0
        self._resting = True
        self._stopped = False

    def batch(self, now: float) -> None:
        """Several claims were taken at `now` (monotonic seconds). Cheap: thousands of calls a second."""
        self._last_batch = now
        if self._resting:
            self._resting = False
            self._wake.set()

    def job(self, now: float) -> None:
        """A handler starts at `now`, or 0.0: none is running."""
        self._batch_began = now

    @property
    def busy_for(self) -> float:
        """Seconds for which the handler has been running that now does."""
        return time.monotonic() - self._batch_began if self._batch_began else 0.0

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()
        self.join(timeout=1.0)

    def run(self) -> None:
        signals.block_all()  # signals are the main thread's, or they would not interrupt a handler
        while not self._stopped:
            self._slot.beat()
            now = time.monotonic()
            began = self._batch_began
            if began and now - began >= PATIENCE:
                self._hand_back()
            self._resting = now - self._last_batch > REST
            self._wake.wait(self._interval if self._resting else PATIENCE / 2)
            self._wake.clear()
