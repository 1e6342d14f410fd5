"""What the concerns need of an engine's connection. Statements are chosen by name, so the dialect is the engine's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from supervisor.domain.errors import StoreError
from supervisor.domain.job import NewJob
from supervisor.store.queries import Queries

Row = tuple[Any, ...]
Answer = TypeVar("Answer")


class RowRefused(StoreError):
    """The contents of one row, or a constraint of the application's, do not allow the change.

    The transaction is rolled back: a trigger may have ended it itself, or kept half of a statement.
    """


class Result(Protocol):
    """What a statement has done: a driver's cursor."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


class Transaction(Protocol):
    """Executes statements inside one transaction."""

    def execute(self, sql: str, parameters: Any = ..., /) -> Result: ...

    def executemany(self, sql: str, parameters: Any, /) -> Result: ...


class Inserter(Protocol):
    """Inserts jobs, in the engine's way."""

    def with_room(self, work: Callable[[Any], Answer]) -> Answer:
        """Run `work`, which inserts jobs, in a write transaction; perhaps once more, after ids have run out."""

    def insert(self, raw: Any, job: NewJob, now: float) -> int | None:
        """Insert one job inside a transaction. Returns its id; None for a duplicate of a unique key.

        Raises RowRefused if anything else keeps it out: nothing that was to be inserted is left out in silence.
        """

    def has_run_out(self) -> bool:
        """Whether there are no more ids for jobs or for their failed attempts."""


class Connection(Protocol):
    """One connection of an engine. Errors of its driver are raised as StoreError, or as one of its subclasses."""

    @property
    def queries(self) -> Queries: ...

    @property
    def inserter(self) -> Inserter: ...

    def rows(self, sql: str, parameters: Any = ...) -> list[Row]:
        """Run one statement outside a transaction of ours and fetch all of it."""

    def row(self, sql: str, parameters: Any = ...) -> Row | None: ...

    def apply(self, sql: str, parameters: Any) -> int:
        """One statement in a transaction of its own. Returns the number of rows changed."""

    def write(self) -> AbstractContextManager[Transaction]:
        """One short write transaction: commits at the end, rolls back on any exception."""


class Opened(Connection, Protocol):
    """A connection with an end."""

    def check(self) -> None:
        """Raises StoreGone if this is no longer the database that the URL names."""

    def close(self) -> None: ...
