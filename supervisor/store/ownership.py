"""Which supervisors of a database are alive, and who holds its locks: known without a connection to it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol


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


class OwnerLock(Protocol):
    """Tells every other process that this supervisor is alive, for as long as the process that took it is."""

    @property
    def path(self) -> Path: ...

    def keep(self) -> bool:
        """Restore the lock if it was lost, and return whether it was. To be called regularly by its owner."""

    def release(self, *, registered: bool = True) -> None: ...


class Writers(Protocol):
    """Reports who holds the locks that writers need, without taking them. For a process that opens no database."""

    def holder(self) -> Holder | None: ...

    def database_holder(self) -> DatabaseHolder | None: ...


class Ownership(Protocol):
    """Which supervisors of this database are alive, and who holds its locks."""

    @property
    def machine_id(self) -> str: ...

    @property
    def boot_id(self) -> str: ...

    @property
    def node(self) -> str: ...

    @property
    def lease_time(self) -> float:
        """Seconds for which a lease holds without which a supervisor may not claim; 0: it needs none."""

    def claim(self, supervisor: str) -> OwnerLock: ...

    def holders(self) -> list[int]:
        """The pids of the live supervisors, even if the database itself is gone."""

    def writers(self) -> Writers: ...
