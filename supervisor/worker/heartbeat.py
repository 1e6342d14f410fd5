"""The worker's second thread: it writes the heartbeat, and does what cannot wait until a run has ended."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from time import monotonic, sleep

from supervisor.system import signals
from supervisor.system.slot import Slot
from supervisor.telemetry import events

EVERY = 0.5  # seconds between two writes of progress, and the age from which on that of a run is written
_AFTER_AN_ERROR = 0.05  # seconds


class Heartbeat(threading.Thread):
    """Beats every `interval` seconds. `on_beat` is called with every beat, and `watch` when it says so: it returns the
    seconds until its next call, or None.
    """

    def __init__(self, slot: Slot, interval: float, on_beat: Callable[[], None] = lambda: None) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.watch: Callable[[float], float | None] = lambda now: None
        self._slot = slot
        self._interval = interval
        self._on_beat = on_beat
        self._wake = threading.Event()
        self._stopped = False
        self._failed = ""

    def wake(self) -> None:
        """Have `watch` called soon. May be called by any thread."""
        self._wake.set()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()
        self.join(timeout=1.0)

    def run(self) -> None:
        signals.block_all()  # only the main thread takes signals; otherwise they would not interrupt a handler
        while not self._stopped:
            try:
                self._slot.beat()
                self._on_beat()
                look_in = self.watch(monotonic())
                self._wake.wait(self._interval if look_in is None else min(self._interval, look_in))
                self._wake.clear()
            except Exception as error:
                # Whatever the error is: without a beat the worker would be killed as stuck, and its job charged.
                if type(error).__name__ != self._failed:  # each kind once, not with every beat
                    self._failed = type(error).__name__
                    with contextlib.suppress(Exception):
                        events(process="worker").error("heartbeat_failed", error=repr(error), exc_info=True)
                sleep(_AFTER_AN_ERROR)
