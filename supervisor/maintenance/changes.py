"""Notice the moment that anybody has committed, so that the other duties look.

The feed's descriptor is a hint, never the truth: after one the version is looked at again and again, at the
distances that the feed asks for. Nothing is lost where there are no hints: the poll finds it a second later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from supervisor.domain.duty import Duty, Result
from supervisor.store.base import ChangeFeed

_BUSY_PAUSE = 0.005  # seconds without listening when there is nobody to wake
_FRUITLESS_PAUSE = 0.0005  # seconds more for each look in a row that woke nobody: commits of busy workers
_QUIET = 0.05  # seconds after which looks are no longer "in a row"


@dataclass(frozen=True, slots=True)
class Seen(Result):
    changed: bool = False

    @property
    def news(self) -> bool:
        return self.changed


_NOTHING, _NEWS = Seen(), Seen(True)


class CommitWatch(Duty):
    """Listens for as long as there is somebody to wake. All times are seconds of `clock`."""

    name = "changes"
    every = 1.0  # seconds: the safety net
    quiet = True

    def __init__(self, feed: ChangeFeed, clock: Callable[[], float] = time.monotonic) -> None:
        self._feed = feed
        self._clock = clock
        self._version = -1
        self._opened = 0.0
        self._step = len(feed.window)
        self._deaf_until = 0.0
        self._looked = 0.0
        self._fruitless = 0

    def fileno(self) -> int | None:
        return self._feed.fileno()

    def listening(self) -> bool:
        """Whether a hint should end the maintainer's sleep."""
        return self._clock() >= self._deaf_until

    def heard(self) -> None:
        """There are hints: open the window."""
        if self._feed.drain():
            self._open(self._clock())

    def next_at(self, now: float) -> float | None:
        """The next look within the window."""
        window = self._feed.window
        if self._deaf_until > self._opened:
            return now + self._deaf_until - self._clock()
        if self._step < len(window):
            return now + self._opened + window[self._step] - self._clock()
        return None

    def run(self, now: float) -> Seen:
        at = self._clock()
        self._deaf_until = 0.0
        window = self._feed.window
        while self._step < len(window) and self._opened + window[self._step] <= at:
            self._step += 1
        version = self._feed.version()
        if version == self._version:
            self._listen(at)
            return _NOTHING
        self._version = version
        return _NEWS

    def woke(self, *, anybody: bool, posted: int) -> None:
        """What came of the last look: whether anybody slept, and how many were woken."""
        at = self._clock()
        if anybody:
            self._listen(at)
        else:
            # A worker that becomes idle looks for itself first, so a short deafness loses nothing.
            self._deaf_until = at + _BUSY_PAUSE
            self._feed.pause()
        self._fruitless = 0 if posted or at - self._looked > _QUIET else self._fruitless + 1
        self._looked = at
        if self._fruitless:
            self._deaf_until = max(self._deaf_until, at + min(self._fruitless * _FRUITLESS_PAUSE, _BUSY_PAUSE))

    def _listen(self, at: float) -> None:
        if self._feed.resume():
            self._open(at)  # what was committed just before gave no hint: look as if one had come

    def _open(self, at: float) -> None:
        self._opened, self._step = at, 0

    def close(self) -> None:
        self._feed.close()
