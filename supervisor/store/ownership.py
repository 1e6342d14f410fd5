"""Which supervisors are alive: each holds a POSIX record lock on a file of its own.

A record lock belongs to the process, not to the descriptor: unlike flock it is not inherited by forked
children, and the kernel drops it when the process ends, however it ends. It is also lost when the process
closes any descriptor of the file, so the file is opened exactly once in its owner.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from supervisor.domain.errors import StoreError
from supervisor.system.files import file_problem, folder_problem, holder_of


class SupervisorRecord(NamedTuple):
    """One running (or dead) supervisor. `owner_lock` and `scoreboard` are paths of files on its host.

    Where `node` is the same, so are pids; empty if only `host` tells that.
    """

    id: str
    pid: int
    host: str
    machine_id: str
    boot_id: str
    owner_lock: str
    scoreboard: str
    config: str
    version: str
    started_at: float
    node: str = ""


class Holder(NamedTuple):
    """Who holds the writers' lock, and since when, in monotonic seconds."""

    pid: int
    since: float


class DatabaseHolder(NamedTuple):
    """Who holds the database's own write lock; pid 0 is a process of another container. As long as `commits` stays
    the same, nobody has committed anything.
    """

    pid: int
    commits: bytes


class Writers:
    """Reports who holds the locks that writers need, without taking them. For a process that opens no database. Writers
    of a server need none.
    """

    def holder(self) -> Holder | None:
        return None

    def database_holder(self) -> DatabaseHolder | None:
        return None

    def reader(self) -> int | None:
        return None


_FRESH = 5.0  # seconds for a new file's owner to lock it and to register
_CLOCKS_DIFFER = 5.0  # seconds: the kernel reports start times in whole seconds, and clocks are set


class LockFolder:
    """The folder that the supervisors of one database share on one machine."""

    def __init__(self, folder: Path, *, parents: bool = False) -> None:
        self.folder = folder
        self.parents = parents  # whether those of the folder are made, too

    def owners(self) -> set[int]:
        """Users other than this one and root whose files are trusted there."""
        return set()

    def share(self, path: Path, *, folder: bool = False) -> None:
        """Let the users of the database use what was made."""

    def owner_lock(self, supervisor: str) -> Path:
        """The file whose record lock shows that a supervisor is alive."""
        return self.folder / f"owner-{supervisor}.lock"

    def refuse_strange_folder(self) -> None:
        """Raises StoreError if another user has put something in the folder's place."""
        if problem := folder_problem(self.folder, self.owners()):
            raise StoreError(problem)

    def make_folder(self) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=self.parents)
        except FileExistsError:
            self.refuse_strange_folder()
        except OSError as error:
            raise StoreError(f"cannot make the folder {self.folder}: {error.strerror}") from None
        else:
            self.share(self.folder, folder=True)

    def open_shared(self, path: Path) -> int:
        """Open (and make) a lock file in the folder. Returns the descriptor."""
        self.make_folder()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            why = "it is a symbolic link; remove it" if error.errno == errno.ELOOP else error.strerror
            raise StoreError(f"cannot open {path}: {why}") from None
        if problem := file_problem(path, descriptor, self.owners()):
            os.close(descriptor)
            raise StoreError(problem)
        if os.fstat(descriptor).st_size == 0:
            self.share(path)
        return descriptor


class OwnerLock:
    """Held for as long as the process that created it is alive, or until `release`."""

    def __init__(self, locks: LockFolder, supervisor: str) -> None:
        self._locks = locks
        self.path = locks.owner_lock(supervisor)
        self._descriptor = self._take()

    def _take(self) -> int:
        descriptor = self._locks.open_shared(self.path)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise StoreError(f"{self.path}: this file system refuses record locks ({error.strerror})") from None
        return descriptor

    def keep(self) -> bool:
        """Create the file again if it is gone or was replaced. Returns whether that was necessary.

        To be called regularly, in the owning process only. Raises StoreError if it cannot be created.
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
        """Release the lock. To be called in the owning process only.

        The file is removed with the registry's row: otherwise an orderly end would look like a deleted file.
        """
        if not registered:
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)


class Ownership:
    """Which supervisors of this database are alive, and who holds its locks.

    `machine_id` identifies this installation, and `boot_id` changes with every boot; empty if unknown. `node` tells
    processes that see the same pids. `lease_time`: seconds for which a lease holds without which a supervisor may not
    claim; 0: it needs none.
    """

    lease_time = 0.0

    def __init__(self, locks: LockFolder, writers: Callable[[], Writers] = Writers) -> None:
        self._locks = locks
        self.writers = writers
        self.machine_id, self.boot_id = _read("/etc/machine-id"), _read("/proc/sys/kernel/random/boot_id")
        self.node = f"{os.uname().nodename} {_pid_namespace()}"

    def claim(self, supervisor: str) -> OwnerLock:
        return OwnerLock(self._locks, supervisor)

    def lives(self, owner: SupervisorRecord) -> bool | None:
        """Whether a supervisor is alive: True, False, or None if this machine cannot tell.

        Its lock is looked up in our own folder: a peer in a container may know the same folder by another path. Must
        not be called in the owner's own process: closing the descriptor would drop its lock.
        """
        here = self.machine_id and self.boot_id and owner.boot_id and owner.machine_id == self.machine_id
        if here and owner.boot_id != self.boot_id:
            return False
        try:
            descriptor = os.open(self._locks.owner_lock(owner.id), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return self._runs(owner)
        except ValueError:  # not a supervisor's row: its id cannot be part of a file name
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
            # The lock may be on a deleted file: it is dead all the same.
            return False
        finally:
            os.close(descriptor)

    def _runs(self, owner: SupervisorRecord) -> bool | None:
        """Whether the process of a supervisor's record is running although its lock file is gone, perhaps deleted.

        The process must be older than the record; None if its host's processes cannot be seen from here.
        """
        if owner.boot_id != self.boot_id:
            return False  # a copy of a database from another machine
        if owner.node != self.node if owner.node else owner.host != os.uname().nodename:
            return None  # another container has processes of its own
        from supervisor.system import kernel  # rarely needed: the file is deleted by whoever ends

        started = kernel.started_at(owner.pid)
        return started is not None and started <= owner.started_at + _CLOCKS_DIFFER

    def holders(self) -> list[int]:
        """The pids of live supervisors, registered or not; 0 for one in another container.

        Like `lives`, not to be called by one of them.
        """
        pids = []
        for path in sorted(self._files()):
            with suppress(OSError), path.open("rb") as file:
                pid = holder_of(file.fileno(), fcntl.F_WRLCK)
                if pid is not None:
                    pids.append(pid)
        return pids

    def remove_files(self, gone: str, registered: Iterable[str]) -> None:
        """Delete the file of a supervisor that was removed from the registry, and the files of others whose row is gone
        or was never written.
        """
        with suppress(OSError, ValueError):
            self._locks.owner_lock(gone).unlink()
        known = {self._locks.owner_lock(supervisor) for supervisor in registered}
        for path in self._files() - known:
            with suppress(OSError), path.open("rb") as file:
                fresh = time.time() - os.fstat(file.fileno()).st_ctime < _FRESH
                if not fresh and holder_of(file.fileno(), fcntl.F_WRLCK) is None:
                    path.unlink()

    def _files(self) -> set[Path]:
        return set(self._locks.folder.glob(self._locks.owner_lock("*").name))


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


@lru_cache
def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""
