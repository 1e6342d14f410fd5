"""The writers' lock file: our writers queue here before they ask SQLite for its write lock.

SQLite's own busy timeout polls with growing pauses, so beside saturating writers an unlucky process waits
for seconds. A lock that the kernel hands on keeps every wait short. It is a courtesy, not a guarantee:
SQLite's lock decides, and whoever waits too long for this one goes on without it.
"""

from __future__ import annotations

import fcntl
import os
import time

from supervisor.store.sqlite.place import Place

PATIENCE = 1.0  # seconds before a writer passes by: the holder is stopped, or a stranger
_FIRST_PAUSE = 0.00001
_LONGEST_PAUSE = 0.0002


class WriteLock:
    """An advisory lock of one connection. Not reentrant; each connection has a descriptor of its own."""

    def __init__(self, place: Place) -> None:
        self._descriptor = place.open_shared(place.write_lock)
        self._held = False

    def acquire(self) -> None:
        """Wait for the lock, for at most PATIENCE seconds; then go on without it."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._held = True
        except BlockingIOError:
            self._held = self._wait()

    def _wait(self) -> bool:
        deadline = time.monotonic() + PATIENCE
        pause = _FIRST_PAUSE
        while time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            return True
        return False

    def release(self) -> None:
        if self._held:
            self._held = False
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._descriptor)
