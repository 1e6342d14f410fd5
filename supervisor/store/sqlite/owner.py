"""Who lives: a POSIX record lock on a file of its own for each supervisor.

A record lock belongs to the process, not to the descriptor: it does not live on in forked children, as
flock does, and the kernel drops it with the process however that ends. It is also lost when the process
closes any descriptor of the file, so the file is opened exactly once in its owner.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from supervisor.domain.errors import StoreError
from supervisor.store.base import SupervisorRecord
from supervisor.store.sqlite.locks import holder_of
from supervisor.store.sqlite.place import Place
from supervisor.system import kernel

_FRESH = 5.0  # seconds for whoever has made a file to lock it, and to stand in the registry
_CLOCKS_DIFFER = 5.0  # seconds: the kernel tells of starts in whole ones, and clocks are set


class OwnerFile:
    """Held for as long as the process that made it lives, or until `release`."""

    def __init__(self, place: Place, supervisor: str) -> None:
        self._place = place
        self.path = place.owner_lock(supervisor)
        self._descriptor = self._take()

    def _take(self) -> int:
        descriptor = self._place.open_shared(self.path)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise StoreError(f"{self.path}: this file system refuses record locks ({error.strerror})") from None
        return descriptor

    def keep(self) -> bool:
        """Make the file again if it is gone, or another has its name. True: that was so.

        To be called now and then, in the owning process only. Raises StoreError if it cannot be made.
        """
        try:
            if os.path.samestat(self.path.lstat(), os.fstat(self._descriptor)):
                return False
        except OSError:
            pass
        gone, self._descriptor = self._descriptor, self._take()
        os.close(gone)
        return True

    def release(self, *, registered: bool = True) -> None:
        """Drop the lock. Call it in the owning process only.

        The file goes with the registry's row: without it nobody could tell an orderly end from a deleted file.
        """
        if not registered:
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)


class SqliteOwnership:
    """Implements `store.base.Ownership`."""

    def __init__(self, place: Place) -> None:
        self._place = place

    @property
    def machine_id(self) -> str:
        return machine_id()

    @property
    def boot_id(self) -> str:
        return boot_id()

    def claim(self, supervisor: str) -> OwnerFile:
        return OwnerFile(self._place, supervisor)

    def holders(self) -> list[int]:
        return holders(self._place)


def lives(owner: SupervisorRecord, place: Place) -> bool | None:
    """Whether a supervisor lives: True, False, or None where nothing here can tell.

    Its lock is looked for in our own folder: a peer in a container may know the same folder by another
    path. Must not be asked by the owner's own process: closing the descriptor would drop its lock.
    """
    machine, boot = machine_id(), boot_id()
    if machine and boot and owner.boot_id and owner.machine_id == machine and owner.boot_id != boot:
        return False
    try:
        descriptor = os.open(place.owner_lock(owner.id), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return _runs(owner)
    except ValueError:  # no supervisor has written that row: its id is no part of a file's name
        return False
    except OSError:
        return None
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    else:
        # The name may have been taken away and the lock be on a deleted file: either way it is dead.
        return False
    finally:
        os.close(descriptor)


def _runs(owner: SupervisorRecord) -> bool | None:
    """Whether the very process of a supervisor's record runs, whose lock file is gone: somebody may have deleted it.

    Only a process that is older than the record can be that; None where its processes cannot be seen from here.
    """
    if owner.boot_id != boot_id():
        return False  # a copy of a database from another machine
    if owner.host != socket.gethostname():
        return None  # another container has processes of its own
    started = kernel.started_at(owner.pid)
    return started is not None and started <= owner.started_at + _CLOCKS_DIFFER


def holders(place: Place) -> list[int]:
    """The pids of the supervisors that live, whether the database knows them or not; 0 for one of another container.

    Like `lives`, not to be asked by one of them.
    """
    pids = []
    for path in sorted(place.folder.glob(place.owner_lock("*").name)):
        with suppress(OSError), path.open("rb") as file:
            pid = holder_of(file.fileno(), fcntl.F_WRLCK)
            if pid is not None:
                pids.append(pid)
    return pids


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Changes with every start of this machine; empty where the system does not tell."""
    return _read("/proc/sys/kernel/random/boot_id")


@lru_cache(maxsize=1)
def machine_id() -> str:
    """Stays with this installation; empty where the system tells none."""
    return _read("/etc/machine-id")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def remove_owner_files(gone: str, registered: Iterable[str], place: Place) -> None:
    """Delete the file of a supervisor that has been struck from the registry, and those that others have left whose
    row is gone already, or was never written.
    """
    with suppress(OSError, ValueError):
        place.owner_lock(gone).unlink()
    known = {place.owner_lock(supervisor) for supervisor in registered}
    for path in set(place.folder.glob(place.owner_lock("*").name)) - known:
        with suppress(OSError), path.open("rb") as file:
            fresh = time.time() - os.fstat(file.fileno()).st_ctime < _FRESH
            if not fresh and holder_of(file.fileno(), fcntl.F_WRLCK) is None:
                path.unlink()


def supervised(records: Iterable[SupervisorRecord], place: Place) -> bool:
    """Whether any of these supervisors lives: then checkpoints are its maintainer's."""
    return any(lives(record, place) for record in records)
