"""The writers' lock file: our writers queue here before they ask SQLite for its write lock.

SQLite's own busy timeout polls with growing pauses, so beside saturating writers an unlucky process waits
for seconds. This lock keeps our own waits short. It is a courtesy, not a guarantee: SQLite's lock decides,
and whoever waits too long for this one goes on without it.

Programs that know nothing of it must not starve. They poll, so what they need is that the write lock is
free for a share of the time: while they are writing a large share, else a small one. Our writers keep an
account of that in the file itself: each transaction adds to a debt, free time pays it off, and whoever
comes when the debt has grown waits it out, with the lock in hand so that nobody else of ours can begin.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time

from supervisor.store.sqlite.place import Place

PATIENCE = 1.0  # seconds before a writer passes by: the holder is stopped, or a stranger
SHARE = 0.1  # of the time, free in any case: all attempts of a 5 s busy timeout fail once in 300 times
GENEROUS_SHARE = 0.4  # while others are seen to write: measured p95 of a foreign INSERT is then 4 ms
GENEROUS_FOR = 5.0  # seconds after they were last seen
_WORTHWHILE = 0.002  # seconds of debt that are worth a pause
_MOST = 0.02  # seconds of debt at most: a long transaction is not paid for with a long silence
_FIRST_PAUSE = 0.00001
_LONGEST_PAUSE = 0.0002
_BYTES = 24
_RELEASED, _DEBT, _GENEROUS_UNTIL = range(3)  # the account: monotonic seconds, seconds, monotonic seconds


class WriteLock:
    """An advisory lock of one connection. Not reentrant; each connection has a descriptor of its own."""

    def __init__(self, place: Place) -> None:
        self._descriptor = place.open_shared(place.write_lock)
        if os.fstat(self._descriptor).st_size < _BYTES:
            os.ftruncate(self._descriptor, _BYTES)
        self._map = mmap.mmap(self._descriptor, _BYTES)
        self._account = memoryview(self._map).cast("d")
        self._held = False
        self._since = 0.0

    def acquire(self) -> None:
        """Wait for the lock, for at most PATIENCE seconds; then go on without it."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._held = True
        except BlockingIOError:
            self._held = self._wait()
        now = time.monotonic()
        if self._held:
            account = self._account
            debt = account[_DEBT] - max(0.0, now - account[_RELEASED])
            if debt > _WORTHWHILE:
                time.sleep(min(debt, _MOST))
                now, debt = time.monotonic(), 0.0
            account[_DEBT] = max(0.0, debt)
        self._since = now

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
            now = time.monotonic()
            account = self._account
            share = GENEROUS_SHARE if now < account[_GENEROUS_UNTIL] else SHARE
            account[_DEBT] = min(account[_DEBT] + (now - self._since) * share / (1 - share), _MOST)
            account[_RELEASED] = now
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def be_generous(self) -> None:
        """Others are writing: leave them more of the time for a while."""
        self._account[_GENEROUS_UNTIL] = time.monotonic() + GENEROUS_FOR

    def close(self) -> None:
        self._account.release()
        self._map.close()
        os.close(self._descriptor)
