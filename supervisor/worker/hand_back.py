"""During a slow job: settle what is finished, and return what has not started, so that nothing waits for the job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from supervisor.domain.errors import StoreError
from supervisor.domain.settlement import Settlement
from supervisor.store.base import Exchange
from supervisor.system.slot import Slot
from supervisor.worker.claim_buffer import ClaimBuffer
from supervisor.worker.counting import Counter
from supervisor.worker.telling import Telling

_AT_ONCE = 16  # settlements between two beats: if a trigger refuses one, each takes a transaction of its own

Settle = Callable[[Sequence[Settlement], float], "Exchange | None"]
"""Settles on a store that belongs to the caller's thread; None if this process must not use one any more."""


class HandBack:
    """Called by the heartbeat thread with the seconds for which the current handler call has been running.

    While it is `active` it may hold settlements that are recorded nowhere else.
    """

    def __init__(
        self,
        settle: Settle,
        buffer: ClaimBuffer,
        slot: Slot,
        counter: Counter,
        tell: Telling,
        log: Any,
        clock: Callable[[], float],
    ) -> None:
        self._settle = settle
        self._buffer = buffer
        self._slot = slot
        self._counter = counter
        self._tell = tell
        self._log = log
        self._clock = clock
        self._settled = 0  # runs, by this thread
        self.active = False

    def __call__(self, busy_for: float) -> None:
        self.active = True  # before anything is taken from the buffer
        try:
            self._counter.flush()
            self._buffer.release()
            settlements, runs = self._buffer.collect()
            try:
                while settlements and (exchange := self._write(settlements[:_AT_ONCE], now := self._clock())):
                    written, settlements = settlements[:_AT_ONCE], settlements[_AT_ONCE:]
                    ended, runs = min(runs, _AT_ONCE), max(0, runs - _AT_ONCE)
                    self._note(exchange, written, ended, now - busy_for)
            finally:
                self._buffer.put_back(settlements, runs)
        finally:
            self.active = False

    def _write(self, settlements: list[Settlement], now: float) -> Exchange | None:
        """None if it could not be written."""
        self._slot.beat()
        try:
            return self._settle(settlements, now)
        except StoreError as error:
            self._counter.store_failed(error)
            self._log.warning("hand_back_failed", error=str(error))
            return None

    def _note(self, exchange: Exchange, written: list[Settlement], runs: int, ended_by: float) -> None:
        """`ended_by` is when the slow run started: all of these had ended by then."""
        self._settled += runs
        self._slot.work.settle_aside(self._settled)
        self._counter.settled(written, exchange.lost, ended_by)
        self._tell(written, exchange)
        self._slot.work.hold(1)
