"""One side of `supervisor move`, and what a move notes in a database.

Rows are read and written table by table, in the order of a key. Columns are named by the caller, and keys are in the
order of their bytes, so that both engines agree. The target is filled in one transaction; the source is shut before it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from supervisor.domain.errors import Conflict, StoreError
from supervisor.store.sql.connection import Connection, Queries, Row, Transaction, literal, load

if TYPE_CHECKING:
    from supervisor.store.sql.registry import Registry

# The keys of job_meta. At the source: where the jobs go, and where they have gone. At the target: whence they came.
CLOSED_FOR, MOVED_TO, MOVED_FROM = MOVE_KEYS = ("closed_for", "moved_to", "moved_from")
_NOT_MOVED = ("schema", "oldest_writer", "epoch", *MOVE_KEYS)

# What whoever changes jobs of the source gets, with the target's URL.
BEING_MOVED = "the jobs are being moved to {}; try again when that is done, or repeat `supervisor move`"
_REFUSALS = {CLOSED_FOR: BEING_MOVED, MOVED_TO: "the jobs were moved to {}; use that URL"}

# Every table with the columns of its key: a job before what belongs to it, supervisors before their workers.
KEYS: dict[str, tuple[str, ...]] = {
    "jobs": ("id",),
    "job_errors": ("id",),
    "job_runs": ("number",),
    "job_batch_limits": ("job_id",),
    "job_second_chances": ("job_id",),
    "job_after": ("after_id", "job_id"),
    "job_batches": ("id",),
    "job_limits": ("type",),
    "job_keys": ("type", "key"),
    "job_controls": ("kind", "name"),
    "job_schedules": ("name",),
    "job_history": ("minute", "type"),
    "job_meta": ("key",),
    "job_supervisors": ("id",),
    "job_workers": ("incarnation",),
}
TABLES = frozenset((*KEYS, "job_moves", "job_ends", "job_since_crash"))
"""All tables of both engines, for tools that would take them for leftovers."""

_SQL = load("supervisor.store.sql", "move.sql")

Key = Sequence[Any]
"""A row's values in the columns of a table's key."""


class MoveEnd:
    """A database as a source or a target; its URL `shown` has no password. An engine says the rest. `registry` has the
    `other` connection: it looks during writes.
    """

    _sql: Queries

    def __init__(self, connection: Connection, shown: str, registry: Registry, other: Connection) -> None:
        self._connection, self._other = connection, other
        self.shown = shown
        self._registry = registry

    # What an engine does in its own way

    def columns(self, table: str) -> list[str]:
        raise NotImplementedError

    def fitted(self, table: str, columns: Sequence[str], row: Row) -> Row | str:
        """The row as it is stored here, or why that is impossible."""
        raise NotImplementedError

    def _insert(self, raw: Any, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        raise NotImplementedError

    def _name(self, table: str, column: str) -> str:
        return f'"{column}"'

    def _statement(self, sql: str) -> str:
        """As the driver takes it."""
        return sql

    def _parts(self, script: str) -> Iterable[str]:
        """What can be executed at once."""
        return [script]

    # Looking

    def flags(self) -> dict[str, str]:
        """What job_meta says of moves, and of which life of the database this is (`epoch`)."""
        return {str(key): str(value) for key, value in self._connection.rows(self._connection.queries.flags)}

    def running(self) -> list[str]:
        """The supervisors that run on this database, or may do so."""
        known = self._registry.supervisors()
        return [f"{one.pid} on {one.host}" for one in known if self._registry.owner_lives(one) is not False]

    def refuse_running(self) -> None:
        """Raises Conflict if there are any."""
        if running := self.running():
            raise Conflict(
                f"supervisor {', supervisor '.join(running)} is running on {self.shown}; stop it first, with SIGTERM "
                "or Ctrl-C there"
            )

    def count(self, table: str, raw: Transaction | None = None) -> int:
        """In a transaction, or now."""
        sql = _SQL.count.format(table=table, where=_where(table))
        return int((self._connection.rows(sql) if raw is None else raw.execute(sql).fetchall())[0][0])

    def block(self, table: str, columns: Sequence[str], after: Key | None, limit: int) -> list[Row]:
        """The first rows behind a key, or from the beginning on."""
        return self._connection.rows(*self._block(table, columns, after, limit))

    def sequences(self) -> dict[str, int]:
        """The greatest ids that were given, by table."""
        return {str(name): int(value or 0) for name, value in self._connection.rows(self._sql.sequences)}

    # The source

    def shut(self, state: str, target: str) -> None:
        """From now on everybody who changes jobs is told that they are being moved to this URL (CLOSED_FOR), or were
        moved (MOVED_TO). Raises Conflict if supervisors run, and changes nothing then.
        """
        message = literal(_REFUSALS[state].format(target))
        with self._connection.write() as raw:
            self._execute(raw, self._sql.shut.format(message=message))
            self.refuse_running()  # now that no other can begin
            self._note(raw, {CLOSED_FOR: None, state: target})

    def reopen(self) -> None:
        """The end of that."""
        with self._connection.write() as raw:
            self._execute(raw, self._sql.open)
            self._note(raw, {CLOSED_FOR: None})

    # The target, in one transaction

    @contextlib.contextmanager
    def write(self) -> Iterator[Transaction]:
        """Nobody else writes meanwhile."""
        with self._connection.write() as raw:
            if lock := self._sql.statements.get("lock"):  # where a transaction alone does not ensure it
                raw.execute(lock)
            yield raw

    def clear(self, raw: Transaction) -> None:
        """Delete everything but what makes the tables ours."""
        for table in reversed(KEYS):
            raw.execute(_SQL.clear.format(table=table, where=_where(table)))

    def present(self, raw: Transaction, ids: Collection[int]) -> set[int]:
        """Those of these ids that jobs have."""
        found = raw.execute(self._statement(self._sql.present), {"ids": json.dumps(list(ids))})
        return {row[0] for row in found.fetchall()}

    def add(self, raw: Transaction, table: str, columns: Sequence[str], after: Key | None, rows: Sequence[Row]) -> None:
        """Add rows behind all others, and read them back."""
        self._insert(raw, table, columns, rows)
        if raw.execute(*self._block(table, columns, after, len(rows) + 1)).fetchall() != rows:
            raise StoreError(f"{self.shown}: {table} after {after} differs from what was written")

    def finish(self, raw: Transaction, sequences: Mapping[str, int], moved_from: str) -> None:
        """The sequences continue behind these ids; `moved_from` is kept."""
        self._execute(raw, self._sql.raise_sequences, sequences)
        self._note(raw, {MOVED_FROM: moved_from})

    def close(self) -> None:
        self._connection.close()
        self._other.close()

    # Statements

    def _execute(self, raw: Transaction, script: str, values: Mapping[str, Any] | None = None) -> None:
        for statement in self._parts(script):
            raw.execute(*((self._statement(statement), values) if values else (statement,)))

    def _note(self, raw: Transaction, notes: Mapping[str, str | None]) -> None:
        """In job_meta; None removes a key."""
        queries = self._connection.queries
        for name, value in notes.items():
            statement = queries.delete_meta if value is None else queries.set_meta
            raw.execute(statement, {"key": name} if value is None else {"key": name, "value": value})

    def _listed(self, table: str, columns: Iterable[str]) -> str:
        return ", ".join(self._name(table, column) for column in columns)

    def _block(self, table: str, columns: Sequence[str], after: Key | None, limit: int) -> tuple[str, dict[str, Any]]:
        key = self._listed(table, KEYS[table])
        values = {f"after_{'ab'[at]}": value for at, value in enumerate(after or ())}
        behind = f"({key}) > ({', '.join(f':{name}' for name in values)})" if values else "1 = 1"
        where = f"{behind} AND {_where(table)}"
        sql = _SQL.block.format(columns=self._listed(table, columns), table=table, where=where, order=key)
        return self._statement(sql), values | {"limit": limit}


def _where(table: str) -> str:
    """What is moved: of job_meta not what is the database's own."""
    return f"key NOT IN ({', '.join(map(literal, _NOT_MOVED))})" if table == "job_meta" else "1 = 1"
