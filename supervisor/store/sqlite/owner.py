"""Who lives: a POSIX record lock on a file of its own for each supervisor.

A record lock belongs to the process, not to the descriptor: it does not live on in forked children, as
flock does, and the kernel drops it with the process however that ends. It is also lost when the process
closes any descriptor of the file, so the file is opened exactly once in its owner.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from supervisor.domain.errors import StoreError
from supervisor.store.base import SupervisorRecord
from supervisor.store.sqlite.place import Place

_FLOCK = "hhqqi"  # the kernel's struct flock: type, whence, start, length, pid


class OwnerFile:
    """Held for as long as the process that made it lives, or until `release`."""

    def __init__(self, place: Place, supervisor: str) -> None:
        self.path = place.owner_lock(supervisor)
        self._descriptor = place.open_shared(self.path)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreError(f"{self.path}: this file system refuses record locks ({error.strerror})") from None

    def release(self) -> None:
        """Delete the file and drop the lock. Call it in the owning process only."""
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)


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


def holders(place: Place) -> list[int]:
    """The pids of the supervisors that live, whether the database knows them or not; 0 for one of another container.

    Like `lives`, not to be asked by one of them.
    """
    pids = []
    for path in sorted(place.folder.glob(place.owner_lock("*").name)):
        with suppress(OSError), path.open("rb") as file:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
            if kind != fcntl.F_UNLCK:
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


def remove_owner_file(owner: SupervisorRecord, place: Place) -> None:
    """Tidy up after a dead supervisor."""
    place.owner_lock(owner.id).unlink(missing_ok=True)


def supervised(records: Iterable[SupervisorRecord], place: Place) -> bool:
    """Whether any of these supervisors lives: then checkpoints are its maintainer's."""
    return any(lives(record, place) for record in records)
