"""What the concerns need of an engine's connection, and what they do with rows that the database refuses to change.

Statements are chosen by name, so the dialect is the engine's. A row whose change is refused affects no other rows: it
is quarantined, and the others are processed. The table's CHECKs keep such rows out, but not all of them: a CHECK of the
application's, a trigger, a counter at the end of what an integer holds. Whatever is done to many rows is done in one
transaction; if that is refused, with a transaction for each row, since a trigger may undo or ignore all of one.
"""

from __future__ import annotations

import json
import os
import re
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from supervisor.domain.errors import StoreError
from supervisor.domain.job import NewJob
from supervisor.domain.settlement import MAX_MESSAGE, clipped

Row = tuple[Any, ...]
Item = TypeVar("Item")

IGNORED = "a trigger ignores the change"
_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*$\n?", re.MULTILINE)


class Queries:
    """The statements of one file as attributes. An unknown name is an AttributeError at its first use."""

    def __init__(self, statements: Mapping[str, str]) -> None:
        self.statements = MappingProxyType(dict(statements))
        self.__dict__.update(statements)  # as attributes, for speed: a claim needs five of them

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"no statement is named {name!r}")


def of_engine(package: str) -> Queries:
    """The statements of an engine: its own, and those that are the same for every engine."""
    return Queries({**load("supervisor.store.sql").statements, **load(package).statements})


def load(package: str, filename: str = "queries.sql") -> Queries:
    """Read the statements of `filename` inside `package`. Comments are dropped: SQLite caches by text."""
    text = Path(str(import_module(package).__file__)).parent.joinpath(filename).read_text(encoding="utf-8")
    parts = _NAME.split(text)
    names, bodies = parts[1::2], parts[2::2]
    if len(set(names)) != len(names):
        raise ValueError(f"{package}/{filename}: two statements share a name")
    return Queries({name: _COMMENT.sub("", body).strip().rstrip(";") for name, body in zip(names, bodies, strict=True)})


def with_parts(statement: str, **parts: Iterable[str]) -> str:
    """A statement with more in its lists: each part behind the comment that has its name, by which it stays known."""
    for name, more in parts.items():
        statement = statement.replace(f"/*{name}*/", f"/*{name}*/{''.join(f', {one}' for one in more)}")
    return statement


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


class Connection(Protocol):
    """One connection of an engine. Errors of its driver are raised as StoreError, or as one of its subclasses."""

    @property
    def queries(self) -> Queries: ...

    def rows(self, sql: str, parameters: Any = ...) -> list[Row]:
        """Run one statement outside a transaction of ours and fetch all of it."""

    def row(self, sql: str, parameters: Any = ()) -> Row | None:
        rows = self.rows(sql, parameters)
        return rows[0] if rows else None

    def apply(self, sql: str, parameters: Any) -> int:
        """One statement in a transaction of its own. Returns the number of rows changed."""
        with self.write() as raw:
            return raw.execute(sql, parameters).rowcount

    def write(self) -> AbstractContextManager[Transaction]:
        """One short write transaction: commits at the end, rolls back on any exception."""

    def pass_gates(self) -> int:
        """Let jobs pass the gates after what others have done, if that is noted. Returns how many notes."""
        return 0

    def insert(self, raw: Any, job: NewJob, now: float, /) -> int | None:
        """Insert one job inside a transaction. Returns its id; None for a duplicate of a unique key.

        Raises RowRefused if anything else keeps it out: nothing that was to be inserted is left out in silence.
        """

    def be_patient(self, seconds: float | None) -> None:
        """How long other writers are waited for from now on; None for as long as usual. Raises StoreError."""

    def syncing(self, whether: bool) -> AbstractContextManager[None]:
        """Whether commits survive a power loss meanwhile, where a connection can change that."""

    def check(self) -> None:
        """Raises StoreGone if this is no longer the database that the URL names."""

    def close(self) -> None: ...


class Forks:
    """Connections inherited through a fork are never closed there: closing would end the parent's, or drop its locks.
    So they are kept out of the garbage collector's reach. `living` are objects with a method `leave`, which returns
    what must not be closed; `count` is how many forks there were: os.getpid would be a system call at every use.
    """

    def __init__(self) -> None:
        self.count = 0
        self.living: weakref.WeakSet[Any] = weakref.WeakSet()
        self._abandoned: list[object] = []
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.count += 1
        self._abandoned.extend(one.leave() for one in list(self.living))

    def refuse(self) -> StoreError:
        return StoreError("this connection was opened before a fork; open the store again in this process")


FORKS = Forks()


class Concern:
    """A part of what an opened store offers, on its connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queries = connection.queries


def literal(text: str) -> str:
    """A text in a statement."""
    return "'" + text.replace("'", "''") + "'"


def lock_jobs(queries: Queries, raw: Transaction, ids: Sequence[int]) -> None:
    """Lock these rows, where there may be several writers at a time: a first statement that leaves a job alone
    and a second one that does not know its new state would both miss it.
    """
    query = queries.statements.get("lock_jobs")
    if query is not None:
        raw.execute(query, {"ids": json.dumps(ids)})


def retry(
    queries: Queries,
    raw: Transaction,
    query: str,
    ids: Sequence[int],
    values: Mapping[str, object],
    duplicates: dict[int, int],
) -> list[int]:
    """Retry these jobs by a query and return the ids of those that are pending again. Adds to `duplicates` the others
    whose unique key an unfinished job has: its id by theirs.
    """
    lock_jobs(queries, raw, ids)
    changed = [row[0] for row in raw.execute(query, {"ids": json.dumps(ids), **values}).fetchall()]
    if len(changed) < len(ids):
        duplicates.update(raw.execute(queries.duplicates, {"ids": json.dumps(ids)}).fetchall())
    return changed


def change_each(
    connection: Connection, items: Sequence[Item], change: Callable[[Transaction, Sequence[Item]], int]
) -> tuple[int, list[tuple[Item, str]]]:
    """Change these in one transaction or, if the database refuses that, each in one of its own. Returns (sum of
    `change`'s results, refused items with reasons).
    """
    try:
        with connection.write() as raw:
            return change(raw, items), []
    except RowRefused as error:
        if len(items) == 1:
            return 0, [(items[0], str(error))]
    apart = [change_each(connection, [item], change) for item in items]
    return sum(changed for changed, _ in apart), [one for _, refused in apart for one in refused]


def quarantine(
    connection: Connection,
    job_id: int,
    why: str,
    now: float,
    *,
    token: object,
    owner: str = "",
    expires_at: float | None = None,
) -> bool:
    """Quarantine a job, with a row in job_errors unless that is refused too, if it has not changed since it was read:
    pending, or held by `owner`.

    False if it has changed, or if the row cannot be changed at all.
    """
    message = clipped(f"the database refuses this row: {why}", MAX_MESSAGE)
    about = {"id": job_id, "error": message, "now": now, "owner": owner, "token": token, "expires_at": expires_at}
    for note in (True, False):
        with suppress(RowRefused), connection.write() as raw:
            changed = raw.execute(connection.queries.set_aside, about).rowcount > 0
            if changed and note:
                raw.execute(connection.queries.note_set_aside, about)
            return changed
    return False
