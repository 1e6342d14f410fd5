"""Where things lie: the database's real path and the small folder beside it that supervisors share."""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.domain.errors import StoreError, StoreGone


class Place:
    """Paths around one database file. Symbolic links are resolved: a lock must have one name."""

    def __init__(self, path: Path) -> None:
        self.database = Path(os.path.realpath(path))
        self._name = str(self.database)
        self.folder = self.database.with_name(self.database.name + "-supervisor")
        self.pinned: tuple[int, int] | None = None  # the file to insist on, if it must be a certain one

    def identity(self) -> tuple[int, int] | None:
        """Which file has the database's name now: device and inode, None if there is none. Costs a microsecond."""
        try:
            found = os.stat(self._name)  # noqa: PTH116 - no Path per write
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def writable(self) -> bool:
        """Whether the file, and the log beside it, may be written as far as permissions go."""
        return all(os.access(path, os.W_OK) for path in (self.database, self.database.parent))

    def gone(self) -> StoreGone:
        """What to raise when the file that was opened has lost its name."""
        if self.identity() is None:
            return StoreGone(f"{self.database}: the file has been removed or moved away while in use", replaced=False)
        return StoreGone(f"{self.database}: the file has been replaced by another while in use", replaced=True)

    @property
    def write_lock(self) -> Path:
        """The file on which our writers queue."""
        return self.folder / "write.lock"

    def owner_lock(self, supervisor: str) -> Path:
        """The file whose record lock says that a supervisor lives."""
        return self.folder / f"owner-{supervisor}.lock"

    def make_folder(self) -> None:
        """Make the shared folder, with the owner of the database and whoever may use it."""
        try:
            self.folder.mkdir(mode=0o700)
        except FileExistsError:
            return
        except OSError as error:
            raise StoreError(f"cannot make the folder {self.folder}: {error.strerror}") from None
        self.share_like_database(self.folder, folder=True)

    def open_shared(self, path: Path) -> int:
        """Open (and make) a lock file in the folder. Returns the descriptor."""
        self.make_folder()
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror}") from None
        if os.fstat(descriptor).st_size == 0:
            self.share_like_database(path)
        return descriptor

    def share_like_database(self, path: Path, *, folder: bool = False) -> None:
        """Give `path` the owner and mode of the database, so that whoever uses one can use both."""
        try:
            model = self.database.stat()
            mode = model.st_mode & 0o666
            if folder:
                mode |= (mode & 0o444) >> 2  # who may read may enter
            if os.geteuid() == 0:
                os.chown(path, model.st_uid, model.st_gid)
            path.chmod(mode)
        except OSError:
            return  # not the owner: whoever made it has set it
