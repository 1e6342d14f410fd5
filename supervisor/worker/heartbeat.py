"""The worker's second thread: it writes the heartbeat, and does what cannot wait until a run has ended."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from time import monotonic, sleep

from supervisor.system import signals
from supervisor.system.slot import Slot
from supervisor.telemetry import events
from supervisor.worker.exchange import Exchange

PATIENCE = 0.05  # seconds that claims may wait behind a run
REST = 2.0  # seconds without such claims, and without progress, after which the thread sleeps between beats
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
                self._beat()
            except Exception as error:
                # Whatever the error is: without a beat the worker would be killed as stuck, and its job charged.
                self._log_once(error)
                sleep(_AFTER_AN_ERROR)

    def _beat(self) -> None:
        self._slot.beat()
        self._on_beat()
        look_in = self.watch(monotonic())
        self._wake.wait(self._interval if look_in is None else min(self._interval, look_in))
        self._wake.clear()

    def _log_once(self, error: Exception) -> None:
        """Each kind of error once, not with every beat."""
        kind = type(error).__name__
        if kind != self._failed:
            self._failed = kind
            with contextlib.suppress(Exception):
                events(process="worker").error("heartbeat_failed", error=repr(error), exc_info=True)


class Beside:
    """What the thread does beside the run of a worker that has one at a time.

    When a run takes longer than PATIENCE, what has ended before is committed and what has not begun returned. Handlers
    report progress to the slot as often as they like; this copies it to the table. A job that reports nothing, or ends
    within EVERY seconds, costs no write.

    It looks twice in PATIENCE seconds. When nothing has asked for that for REST seconds it is not called any more, so
    that an idle worker costs almost nothing. `wake` has it called soon.
    """

    def __init__(self, slot: Slot, exchange: Exchange, wake: Callable[[], None]) -> None:
        self._slot = slot
        self._exchange = exchange
        self._wake = wake
        self.began = 0.0  # when the run that is on did, monotonic seconds; 0.0 if none is
        self._asked = False  # since the last look
        self._asked_at = 0.0
        self._resting = True
        self._written: tuple[object, ...] = ()  # the progress that is in the table
        self._write_at = 0.0

    def attend(self) -> None:
        """Several claims were taken, or a run has reported progress. By any thread; cheap: called thousands of times
        a second.
        """
        self._asked = True
        if self._resting:
            self._resting = False
            self._wake()

    def look(self, now: float) -> float | None:
        """Called by the heartbeat thread; returns the seconds until it should be called again."""
        if self._asked:
            self._asked, self._asked_at = False, now
        began = self.began
        if began and now - began >= PATIENCE:
            self._exchange.aside(now - began)
        if now >= self._write_at:
            self._copy_progress(now)
        self._resting = now - self._asked_at > REST
        if self._asked:  # meanwhile: whoever asks from now on wakes us
            self._resting = False
        return None if self._resting else PATIENCE / 2

    def _copy_progress(self, now: float) -> None:
        run = self._slot.read()
        reported = (run.job, run.token, run.progress, run.text)
        if not run.job or run.progress is None or reported == self._written:
            return
        self._asked = True  # until it is written
        if now - run.started < EVERY or self._slot.page.run != (run.job, run.token):
            return  # young, or another run has begun: the rest may be another's, too
        if self._exchange.show_progress((run.job, run.token), run.batch, run.progress, run.text):
            self._written = reported
        self._write_at = monotonic() + EVERY
