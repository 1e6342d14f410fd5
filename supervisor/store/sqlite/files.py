"""Paths: the database's real path, and the small folder beside it that supervisors share."""

from __future__ import annotations

import os
import stat
import time
from itertools import chain, count
from pathlib import Path
from urllib.parse import quote

from supervisor.domain.errors import NoTables, StoreError, StoreGone
from supervisor.store.ownership import LockFolder
from supervisor.system.files import owner_of


def uri(path: Path, mode: str) -> str:
    """For SQLite. `Path.as_uri` loads urllib.request, with HTTP and TLS, from Python 3.14 on."""
    return f"file://{quote(os.fsencode(path))}?mode={mode}"


class DatabaseFiles(LockFolder):
    """Paths around one database file. Symbolic links are resolved: a lock must have one name."""

    def __init__(self, path: Path) -> None:
        self.database = Path(os.path.realpath(path))
        self._name = str(self.database)
        super().__init__(self.database.with_name(self.database.name + "-supervisor"))
        self.pinned: tuple[int, int] | None = None  # the only file to accept, if it must be a certain one

    def identity(self, suffix: str = "") -> tuple[int, int] | None:
        """Device and inode of the file that has the database's name now; None if there is none. Costs a microsecond."""
        try:
            found = os.stat(self._name + suffix)  # noqa: PTH116 - no Path per write
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def writable(self) -> bool:
        """Whether permissions allow writing the file and the log beside it."""
        return all(os.access(path, os.W_OK) for path in (self.database, self.database.parent))

    def log_size(self) -> int:
        """Bytes of the write-ahead log."""
        try:
            return os.stat(f"{self._name}-wal").st_size  # noqa: PTH116 - no Path per call
        except OSError:
            return 0

    def sync_log(self) -> None:
        """What was committed without a sync survives a power failure. Without a log it already does.

        Closing the log drops no lock: those are on the database and on its -shm. Raises StoreError.
        """
        for path, flags in ((f"{self._name}-wal", os.O_RDONLY), (str(self.database.parent), os.O_DIRECTORY)):
            try:
                descriptor = os.open(path, flags | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StoreError(f"cannot open {path}: {error.strerror}") from None
            try:
                os.fsync(descriptor)
            except OSError as error:
                raise StoreError(f"cannot sync {path}: {error.strerror}") from None
            finally:
                os.close(descriptor)

    def gone(self) -> StoreGone:
        """The exception for a file that no longer has the name by which it was opened."""
        if self.identity() is None:
            return StoreGone(f"{self.database}: the file has been removed or moved away while in use", replaced=False)
        return StoreGone(f"{self.database}: the file has been replaced by another while in use", replaced=True)

    def missing(self) -> NoTables:
        """The exception for a file that has not been made."""
        return NoTables(f"{self.database}: the database does not exist")

    def dated(self, what: str) -> Path:
        """A name beside the database for a copy made now."""
        return Path(f"{self._name}.{what}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}")

    def unused(self, what: str) -> Path:
        """The same, with a number if another copy was made in the same second."""
        first = self.dated(what)
        others = (Path(f"{first}-{number}") for number in count(2))
        return next(path for path in chain([first], others) if not path.exists())

    @property
    def write_lock(self) -> Path:
        """The file whose lock our writers wait for."""
        return self.folder / "write.lock"

    def owners(self) -> set[int]:
        return owner_of(self.database)

    def share(self, path: Path, *, folder: bool = False) -> None:
        """Give `path` the owner and mode of the database, so that the same users can use both."""
        try:
            model = self.database.stat()
            mode = model.st_mode & 0o666
            if folder:
                mode |= (mode & 0o444) >> 2  # readers may enter
            if not hasattr(os, "O_PATH"):  # a system on which one develops, and is alone
                path.chmod(mode)
                return
            # A descriptor that follows no link, and that drops no locks when it is closed.
            descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return
        try:
            if stat.S_ISLNK(os.fstat(descriptor).st_mode):
                return
            if os.geteuid() == 0:
                os.chown(f"/proc/self/fd/{descriptor}", model.st_uid, model.st_gid)
            Path(f"/proc/self/fd/{descriptor}").chmod(mode)
        except OSError:
            return  # not the owner, who has set it
        finally:
            os.close(descriptor)
