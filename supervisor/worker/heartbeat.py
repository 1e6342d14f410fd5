"""The worker's second thread: it writes the heartbeat, and ensures that nothing waits behind a slow job."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from time import monotonic, sleep
from typing import Protocol

from supervisor.system import signals
from supervisor.system.slot import Slot
from supervisor.telemetry import events

PATIENCE = 0.05  # seconds that claims may wait behind a running job
REST = 2.0  # seconds without such claims after which the thread sleeps between beats


class Watch(Protocol):
    """What the thread does besides, while jobs run."""

    def reported(self) -> bool:
        """There is news, from any thread. Returns whether the heartbeat thread must be told. Cheap."""

    def look(self, now: float) -> float | None:
        """Called by the heartbeat thread at `now`, monotonic seconds. Returns the seconds until the next call, None if
        there is nothing to do.
        """


class HeartbeatThread(threading.Thread):
    """Beats every `interval` seconds. When a job takes longer than PATIENCE it calls `hand_back` with the seconds.

    While claims arrive several at a time it checks twice in PATIENCE seconds; when none have for REST it sleeps from
    beat to beat, so that an idle worker costs almost nothing. `on_beat` is called with every beat; `watch` is
    called when it says so.
    """

    def __init__(
        self,
        slot: Slot,
        interval: float,
        hand_back: Callable[[float], None],
        on_beat: Callable[[], None] = lambda: None,
        watch: Watch | None = None,
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._slot = slot
        self._interval = interval
        self._hand_back = hand_back
        self._on_beat = on_beat
        self._watch = watch
        self._wake = threading.Event()
        self._last_batch = 0.0
        self._job_began = 0.0
        self._resting = True
        self._stopped = False
        self._failed = ""

    def batch(self, now: float) -> None:
        """Several claims were taken at `now` (monotonic seconds). Cheap: called thousands of times a second."""
        self._last_batch = now
        if self._resting:
            self._resting = False
            self._wake.set()

    def job(self, now: float) -> None:
        """A handler starts at `now`; 0.0 means that none is running."""
        self._job_began = now

    def progress_reported(self) -> None:
        """The slot has new progress. Cheap: handlers may report at every step."""
        if self._watch is not None and self._watch.reported():
            self._wake.set()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()
        self.join(timeout=1.0)

    def run(self) -> None:
        signals.block_all()  # only the main thread takes signals; otherwise they would not interrupt a handler
        while not self._stopped:
            try:
                self._beat()
            except Exception as error:
                # Whatever the error is: without a beat the worker would be killed as stuck, and its job charged.
                self._log_once(error)
                sleep(PATIENCE)

    def _beat(self) -> None:
        self._slot.beat()
        self._on_beat()
        now = monotonic()
        began = self._job_began
        if began and now - began >= PATIENCE:
            self._hand_back(now - began)
        self._resting = now - self._last_batch > REST
        pause = self._interval if self._resting else PATIENCE / 2
        look_in = None if self._watch is None else self._watch.look(now)
        self._wake.wait(pause if look_in is None else min(pause, look_in))
        self._wake.clear()

    def _log_once(self, error: Exception) -> None:
        """Each kind of error once, not with every beat."""
        kind = type(error).__name__
        if kind != self._failed:
            self._failed = kind
            with contextlib.suppress(Exception):
                events(process="worker").error("heartbeat_failed", error=repr(error), exc_info=True)
