"""Notices commits as they happen, so that the other duties can react.

The feed's descriptor is only a hint: after one, the version is checked repeatedly, at the intervals that the feed asks
for. Without hints nothing is lost: polling finds the change a second later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from supervisor.domain.duty import Duty, Result
from supervisor.domain.polling import HintWindow
from supervisor.store.base import ChangeFeed

_BUSY_PAUSE = 0.005  # seconds without listening when no worker is idle, at least
_LONGEST_PAUSE = 0.025
_BUSY_SHARE = 0.2  # of the time for which no worker has been idle
_FRUITLESS_PAUSE = 0.0005  # seconds more for each check in a row that woke nobody: commits of busy workers
_QUIET = 0.05  # seconds after which checks are no longer "in a row"


@dataclass(frozen=True, slots=True)
class Seen(Result):
    changed: bool = False

    @property
    def news(self) -> bool:
        return self.changed


_NOTHING, _NEWS = Seen(), Seen(True)


class CommitWatch(Duty):
    """Listens while there are idle workers. All times are seconds of `clock`."""

    name = "changes"
    every = 1.0  # seconds: the safety net
    quiet = True

    def __init__(self, feed: ChangeFeed, clock: Callable[[], float] = time.monotonic) -> None:
        self._feed = feed
        self._clock = clock
        self._version = -1
        self._window = HintWindow(feed.window)
        self._checked = 0.0
        self._idle_at = clock()
        self._deaf_until = 0.0
        self._looked = 0.0
        self._fruitless = 0

    def fileno(self) -> int | None:
        return self._feed.fileno()

    def listening(self) -> bool:
        """Whether a hint should end the maintainer's sleep."""
        return self._clock() >= self._deaf_until

    def heard(self) -> None:
        """Consume the hints and open the window."""
        if self._feed.drain():
            self._window.open(self._clock())

    def next_at(self, now: float) -> float | None:
        """The next check within the window."""
        return None if self.check_at is None else now + self.check_at - self._clock()

    @property
    def check_at(self) -> float | None:
        """The same in seconds of `clock`."""
        return self._deaf_until if self._deaf_until > self._window.opened else self._window.next_after(self._checked)

    def run(self, now: float) -> Seen:
        at = self._clock()
        self._deaf_until = 0.0
        self._checked = at
        version = self._feed.version()
        if version == self._version:
            self._listen(at)
            return _NOTHING
        self._version = version
        self._window.found()
        return _NEWS

    def woke(self, *, anybody: bool, posted: int) -> None:
        """The result of the last check: whether any worker was idle, and how many were woken."""
        at = self._clock()
        if anybody:
            self._idle_at = at
            self._listen(at)
        else:
            # A worker that becomes idle checks the queue itself first, so nothing is lost by not listening briefly.
            self._deaf_until = at + min(max(_BUSY_PAUSE, (at - self._idle_at) * _BUSY_SHARE), _LONGEST_PAUSE)
            self._feed.pause()
        self._fruitless = 0 if posted or at - self._looked > _QUIET else self._fruitless + 1
        self._looked = at
        if self._fruitless:
            self._deaf_until = max(self._deaf_until, at + min(self._fruitless * _FRUITLESS_PAUSE, _BUSY_PAUSE))

    def _listen(self, at: float) -> None:
        if self._feed.resume():
            self._window.open(at)  # what was committed before this gave no hint: act as if one had come

    def close(self) -> None:
        self._feed.close()
