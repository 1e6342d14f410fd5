"""Wake idle workers the moment a job may be there, whoever inserted it.

inotify is a hint, never the truth: with synchronous=FULL the event comes before the commit is visible. So
an event opens an attentive window in which the database's version is looked at again and again, at growing
distances. Nothing is lost where there is no inotify: the poll finds it a second later.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.maintenance.roster import Roster
from supervisor.store.base import Chores, Wanted
from supervisor.system.inotify import Watch
from supervisor.telemetry import events

# Seconds after an event at which to look. Measured with FULL: visible 1 to 2 ms after the event.
WINDOW = (0.0, 0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128)
_BUSY_PAUSE = 0.005  # seconds without listening when there is nobody to wake
_FRUITLESS_PAUSE = 0.0005  # seconds more for each look in a row that woke nobody: commits of busy workers
_QUIET = 0.05  # seconds after which looks are no longer "in a row"


@dataclass(frozen=True, slots=True)
class Woken:
    changed: bool = False
    posted: int = 0


class Waker:
    """`pools` maps a pool's name to what it wants and the eventfd on which its idle workers sleep."""

    every = 1.0  # seconds: the safety net

    def __init__(
        self,
        chores: Chores,
        roster: Roster,
        pools: Mapping[str, tuple[Wanted, int]],
        watched: Path | None,
        prefix: str,
        changed: Callable[[], None],
    ) -> None:
        self._chores = chores
        self._roster = roster
        self._pools = pools
        self._changed = changed
        self._version = -1
        self._opened = 0.0
        self._step = len(WINDOW)
        self._deaf_until = 0.0
        self._looked = 0.0
        self._fruitless = 0
        self._watch = self._open(watched, prefix)

    def _open(self, watched: Path | None, prefix: str) -> Watch | None:
        if watched is None:
            return None
        try:
            return Watch(watched, prefix)
        except OSError as error:
            events().warning("inotify_unavailable", path=str(watched), error=str(error), poll_seconds=self.every)
            return None

    def fileno(self) -> int | None:
        return self._watch.fileno() if self._watch is not None else None

    def listening(self, now: float) -> bool:
        """Whether an event should end the maintainer's sleep. `now` is monotonic."""
        return now >= self._deaf_until

    @property
    def due_at(self) -> float | None:
        """When to look next within the window, in monotonic seconds."""
        if self._deaf_until > self._opened:
            return self._deaf_until
        return self._opened + WINDOW[self._step] if self._step < len(WINDOW) else None

    def heard(self, now: float) -> None:
        """The directory has events: open the window anew. `now` is monotonic."""
        if self._watch is not None and self._watch.seen():
            self._opened, self._step = now, 0

    def run_once(self, now: float) -> Woken:
        """Look whether anything was committed; if so wake who can use it. `now` is Unix seconds."""
        at = time.monotonic()
        self._deaf_until = 0.0
        while self._step < len(WINDOW) and self._opened + WINDOW[self._step] <= at:
            self._step += 1
        version = self._chores.version()
        if version == self._version:
            self._listen(at)
            return Woken()
        self._version = version
        self._changed()
        posted = self.look(now)
        self._fruitless = 0 if posted or at - self._looked > _QUIET else self._fruitless + 1
        self._looked = at
        if self._fruitless:
            pause = min(self._fruitless * _FRUITLESS_PAUSE, _BUSY_PAUSE)
            self._deaf_until = max(self._deaf_until, time.monotonic() + pause)
        return Woken(True, posted)

    def look(self, now: float) -> int:
        """Post min(idle workers, due jobs) to each pool; returns how many posts. `now` is Unix seconds."""
        idle = self._roster.idle()
        if not idle:
            self._stop_listening()
            return 0
        self._listen(time.monotonic())
        posted = 0
        for name, count in idle.items():
            if name in self._pools:
                wanted, eventfd = self._pools[name]
                first = self._chores.glance(wanted, now)
                if first:
                    os.eventfd_write(eventfd, 1)  # it wakes up while we count
                due = self._chores.depth(wanted, now, count).due
                if min(count, due) > first:
                    os.eventfd_write(eventfd, min(count, due) - first)
                posted += due
        return posted

    def _stop_listening(self) -> None:
        """Nobody to wake. A worker that becomes idle looks for itself first, so a short deafness loses nothing."""
        self._deaf_until = time.monotonic() + _BUSY_PAUSE
        if self._watch is not None:
            self._watch.pause()

    def _listen(self, at: float) -> None:
        if self._watch is None:
            return
        try:
            if self._watch.resume():
                # What was committed just before made no event: look as if one had come.
                self._opened, self._step = at, 0
        except OSError:
            return  # tried again at the next look; until then the poll finds everything

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
