"""The writers' lock file: our writers wait here before they ask SQLite for its write lock.

SQLite's own busy timeout polls with growing pauses, so beside saturating writers an unlucky process waits
for seconds. This lock keeps our own waits short. It is advisory: SQLite's lock decides, and a writer that
waits too long for this one continues without it.

With mere polling, one of a dozen writers would wait for half a second now and then, and all of them would wake up in
vain for most of the time. So whoever gets the lock after a wait has a turn of two milliseconds, in which the others
sleep: it writes one short transaction after the other, and what it has cached stays valid. Then a writer that waits
marks that in the lock file, and the others hold back until it has had the lock; of several, the one that has waited
longest goes first.

Programs that do not use this lock must not starve. They poll, so the write lock has to be free for a share of
the time: a large share while they are writing, a small one otherwise. Our writers keep an account of that in the
file itself: each transaction adds to an owed idle time, free time reduces it, and a writer that finds too much of
it waits that long while it holds this lock, so that no other writer of ours can begin.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import time
from pathlib import Path

from supervisor.domain.errors import StoreError
from supervisor.store.ownership import DatabaseHolder, Holder, Writers
from supervisor.store.sqlite.files import DatabaseFiles
from supervisor.system import descriptors
from supervisor.system.files import holder_of

PATIENCE = 1.0  # seconds before a writer continues without it: the holder is stopped, or not one of ours
SHARE = 0.1  # of the time, always free: all attempts of a 5 s busy timeout fail once in 300 times
SHARE_BESIDE_OTHERS = 0.4  # of the time, while others are writing
OTHERS_FOR = 5.0  # seconds after they last wrote
_WORTHWHILE = 0.002  # seconds of owed idle time that are worth a pause
_MOST = 0.02  # seconds of owed idle time at most: a long transaction is not followed by a long pause
_TURN = 0.002  # seconds
_URGENT_AFTER = 0.03  # seconds of waiting after which a writer asks to go first, whoever has a turn
_URGENT_FOR = 0.005  # seconds: it is repeated at every attempt, so an older one is of a process that is gone
_PAUSE = 0.00001  # seconds until the first attempt of a writer that asks to go first; each pause is twice the last, up
_POLL = 0.0002  # to this, since every attempt takes the CPU from the writer that is waited for
_BEHIND = 2 * _TURN  # between looks of the others at whether that writer still waits
_LOOK = 1.0  # seconds between two checks that the file is still the one in the folder
_BYTES = 64
_MOST_PID = 1 << 31
# The account: monotonic seconds, seconds, monotonic seconds; the holder's pid (0: none), its monotonic seconds;
# when a writer last asked to go first, and since when it waits, in monotonic seconds; when the last turn began.
_RELEASED, _OWED, _OTHERS_UNTIL, _HOLDER, _SINCE, _URGENT, _URGENT_SINCE, _TURN_BEGAN = range(8)

WRITE_BYTE = 120  # of the -shm file: WAL_WRITE_LOCK
_READ_BYTES, _READERS = 123, 5  # WAL_READ_LOCK(0) to (4)
_SHARED_FIRST, _SHARED_SIZE = 0x40000002, 510  # of the database: held for writing in the exclusive locking mode
_INDEX_HEADER = 48  # bytes of the -shm file that every commit changes


class WriteLock:
    """An advisory lock of one connection. Not reentrant; each connection has a descriptor of its own.

    `patience` is how many seconds a writer waits for one holder.
    """

    def __init__(self, files: DatabaseFiles) -> None:
        self.patience = PATIENCE
        self._files = files
        self._name = str(files.write_lock)
        self._open()
        self._pid = float(os.getpid())
        self._held = False
        self._since = 0.0
        self._passed: tuple[float, float] | None = None  # the hold for which we have waited too long

    def acquire(self) -> None:
        """Wait for the lock, for at most `patience` seconds per hold; then continue without it."""
        now = time.monotonic()
        if now - self._looked > _LOOK:
            self._look()
        # The account may hold garbage of a broken process: it has no lasting effect.
        held_back = abs(now - self._account[_URGENT]) < _URGENT_FOR
        self._held = (not held_back and self._try()) or self._wait()
        now = time.monotonic()
        if self._held:
            account = self._account
            owed_idle = account[_OWED] - max(0.0, now - account[_RELEASED])
            if owed_idle > _WORTHWHILE:
                time.sleep(min(owed_idle, _MOST))
                now, owed_idle = time.monotonic(), 0.0
            account[_OWED] = max(0.0, owed_idle)
            account[_SINCE], account[_HOLDER] = now, self._pid
        self._since = now

    def _wait(self) -> bool:
        if self._passed == self._hold():
            return False
        account, pause, poll = self._account, _PAUSE, _PAUSE
        began = now = time.monotonic()
        while now - began < self.patience:
            time.sleep(pause)
            now = time.monotonic()
            if abs(now - account[_URGENT]) < _URGENT_FOR and account[_URGENT_SINCE] < began:
                pause = _BEHIND
                continue
            pause = account[_TURN_BEGAN] + _TURN - now
            if pause > _PAUSE and now - began < _URGENT_AFTER:
                pause = min(pause, _TURN)
            else:
                pause = poll = min(poll * 2, _POLL)
                account[_URGENT_SINCE], account[_URGENT] = began, now
            if self._try():
                if account[_URGENT_SINCE] == began:
                    account[_URGENT] = 0.0
                account[_TURN_BEGAN] = now
                return True
        self._passed = self._hold()
        return False

    def _try(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _hold(self) -> tuple[float, float]:
        return self._account[_HOLDER], self._account[_SINCE]

    def release(self) -> None:
        if self._held:
            self._held = False
            now = time.monotonic()
            account = self._account
            share = SHARE_BESIDE_OTHERS if now < account[_OTHERS_UNTIL] <= now + OTHERS_FOR else SHARE
            account[_OWED] = min(account[_OWED] + (now - self._since) * share / (1 - share), _MOST)
            account[_RELEASED] = now
            account[_HOLDER] = 0.0
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def yield_to_others(self) -> None:
        """Others are writing: leave them more of the time for a while."""
        self._account[_OTHERS_UNTIL] = time.monotonic() + OTHERS_FOR

    def close(self) -> None:
        self._account.release()
        self._map.close()
        os.close(self._descriptor)

    def _open(self) -> None:
        self._descriptor, self._map = _open(self._files)
        self._account = memoryview(self._map).cast("d")
        self._file = _identity(os.fstat(self._descriptor))
        self._looked = time.monotonic()

    def _look(self) -> None:
        """Use the file that is in the folder now: with a deleted one we would wait for nobody else."""
        self._looked = time.monotonic()
        try:
            found = os.stat(self._name)  # noqa: PTH116 - no Path per write
            if _identity(found) == self._file and found.st_size >= _BYTES:
                return
        except OSError:
            pass
        old = self._account, self._map, self._descriptor
        try:
            self._open()
        except StoreError:
            return  # keep the old one: this lock is advisory
        old[0].release()

        def close() -> None:
            old[1].close()
            os.close(old[2])

        descriptors.disown_closed(close)


class WriterWatch(Writers):
    """Finds who holds the locks that writers need: for the supervisor, which never writes.

    The file is read and not mapped: if it is truncated, that must not kill the supervisor.
    """

    def __init__(self, files: DatabaseFiles) -> None:
        self._files = files

    def holder(self) -> Holder | None:
        """Who holds our writers' lock, by the entry in its file. A killed holder's entry stays until the next one."""
        try:
            descriptor = os.open(self._files.write_lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            data = os.pread(descriptor, _BYTES, 0)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        if len(data) < _BYTES:
            return None
        account = memoryview(data).cast("d")
        pid, since = account[_HOLDER], account[_SINCE]
        return Holder(int(pid), since) if 0 < pid < _MOST_PID and math.isfinite(since) else None

    def reader(self) -> int | None:
        """The pid of a process that reads a snapshot at this moment; 0 if it is in another container."""
        try:
            with Path(f"{self._files.database}-shm").open("rb") as index:
                return holder_of(index.fileno(), fcntl.F_WRLCK, _READ_BYTES, _READERS)
        except OSError:
            return None

    def database_holder(self) -> DatabaseHolder | None:
        """Who is in a write transaction of SQLite, in any program, or has the file in exclusive mode."""
        files = self._files
        for path, kind, start, length in (
            (f"{files.database}-shm", fcntl.F_WRLCK, WRITE_BYTE, 1),
            (str(files.database), fcntl.F_RDLCK, _SHARED_FIRST, _SHARED_SIZE),
        ):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError:
                continue
            try:
                pid = holder_of(descriptor, kind, start, length)
                if pid is not None:
                    return DatabaseHolder(pid, _commits(files))
            except OSError:
                continue
            finally:
                os.close(descriptor)
        return None


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _open(files: DatabaseFiles) -> tuple[int, mmap.mmap]:
    """The lock file's descriptor, and the account in it."""
    descriptor = files.open_shared(files.write_lock)
    try:
        size = os.fstat(descriptor).st_size
        if size < _BYTES:
            # Written, not only resized: the first write to a hole of a mapped file kills the process on a full disk.
            os.pwrite(descriptor, bytes(_BYTES - size), size)
        return descriptor, mmap.mmap(descriptor, _BYTES)
    except OSError as error:
        os.close(descriptor)
        raise StoreError(f"{files.write_lock}: it cannot be created: {error.strerror}") from None


def _commits(files: DatabaseFiles) -> bytes:
    try:
        with Path(f"{files.database}-shm").open("rb", buffering=0) as index:
            return index.read(_INDEX_HEADER)
    except OSError:
        return b""
