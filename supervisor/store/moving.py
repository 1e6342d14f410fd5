"""One side of `supervisor move`, and what a move notes in a database.

Rows are read and written table by table, in the order of a key. Columns are named by the caller, and keys are in the
order of their bytes, so that both engines agree. The target is filled in one transaction; the source is shut before it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from supervisor.domain.errors import StoreError
from supervisor.store.sql.connection import Connection, Queries, Row, Transaction, literal, load

if TYPE_CHECKING:
    from supervisor.store.sql.registry import Registry

# The keys of job_meta. At the source: where the jobs go, and where they have gone. At the target: whence they came.
CLOSED_FOR, MOVED_TO, MOVED_FROM = MOVE_KEYS = ("closed_for", "moved_to", "moved_from")
_NOT_MOVED = ("schema", "oldest_writer", "epoch", *MOVE_KEYS)

# What whoever changes jobs of the source is told, with the target's URL.
BEING_MOVED = "the jobs are being moved to {}; try again when that is done, or repeat `supervisor move`"
WERE_MOVED = "the jobs were moved to {}; use that URL"

# Every table with the columns of its key: a job before what belongs to it, supervisors before their workers.
KEYS: dict[str, tuple[str, ...]] = {
    "jobs": ("id",),
    "job_errors": ("id",),
    "job_runs": ("number",),
    "job_batch_limits": ("job_id",),
    "job_second_chances": ("job_id",),
    "job_controls": ("kind", "name"),
    "job_schedules": ("name",),
    "job_history": ("minute", "type"),
    "job_meta": ("key",),
    "job_supervisors": ("id",),
    "job_workers": ("incarnation",),
}
TABLES = frozenset(KEYS)
"""All tables of the schema, for tools that would take them for leftovers."""

_SQL = load("supervisor.store.sql", "move.sql")

Key = Sequence[Any]
"""A row's values in the columns of a table's key."""


class Unfit(NamedTuple):
    """Why a row cannot be stored in another engine: what is in which column."""

    column: str
    problem: str


class MoveEnd:
    """A database as a source or a target; its URL `shown` has no password. `notes` are stored in job_meta; None removes
    one. An engine says the rest. `registry` has the `other` connection: it looks during writes.
    """

    _sql: Queries

    def __init__(self, connection: Connection, shown: str, registry: Registry, other: Connection) -> None:
        self._connection, self._other = connection, other
        self.shown = shown
        self._registry = registry

    # What an engine does in its own way

    def columns(self, table: str) -> list[str]:
        raise NotImplementedError

    def fitted(self, table: str, columns: Sequence[str], row: Row) -> Row | Unfit:
        """The row as it is stored here, or why that is impossible."""
        raise NotImplementedError

    def _name(self, table: str, column: str, *, ordered: bool = False) -> str:
        """A column in a statement; `ordered` in a key."""
        return f'"{column}"'

    def _statement(self, sql: str, **values: Any) -> tuple[str, dict[str, Any]]:
        """As the driver takes it."""
        return sql, values

    def _insert(self, raw: Any, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        raise NotImplementedError

    def _parts(self, script: str) -> Iterable[str]:
        """What can be executed at once."""
        return [script]

    # Looking

    def flags(self) -> dict[str, str]:
        return {str(key): str(value) for key, value in self._connection.rows(self._connection.queries.flags)}

    def epoch(self) -> str:
        """Names this life of the database."""
        found = self._connection.row(self._connection.queries.meta, {"key": "epoch"})
        return str(found[0]) if found else ""

    def running(self) -> list[str]:
        """The supervisors that run on this database, or may do so."""
        known = self._registry.supervisors()
        return [f"{one.pid} on {one.host}" for one in known if self._registry.owner_lives(one) is not False]

    def count(self, table: str, raw: Transaction | None = None) -> int:
        """In a transaction, or now."""
        sql = _SQL.count.format(table=table, where=self._where(table, None))
        return int((self._connection.rows(sql) if raw is None else raw.execute(sql).fetchall())[0][0])

    def block(self, table: str, columns: Sequence[str], after: Key | None, limit: int) -> list[Row]:
        """The first rows behind a key, or from the beginning on."""
        return self._connection.rows(*self._block(table, columns, after, limit))

    def sequences(self) -> dict[str, int]:
        """The greatest ids that were given, by table."""
        return {str(name): int(value or 0) for name, value in self._connection.rows(self._sql.sequences)}

    # The source

    def shut(self, message: str, notes: Mapping[str, str | None]) -> list[str]:
        """From now on everybody who changes jobs gets this message. Not if supervisors run: returns them."""
        running: list[str] = []
        with contextlib.suppress(_Undo), self._connection.write() as raw:
            for statement in self._parts(self._sql.shut.format(message=literal(message))):
                raw.execute(statement)
            running = self.running()  # now that no other can begin
            if running:
                raise _Undo
            self._note(raw, notes)
        return running

    def reopen(self) -> None:
        """The end of that."""
        with self._connection.write() as raw:
            for statement in self._parts(self._sql.open):
                raw.execute(statement)
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
            raw.execute(_SQL.clear.format(table=table, where=self._where(table, None)))

    def present(self, raw: Transaction, ids: Collection[int]) -> set[int]:
        """Those of these ids that jobs have."""
        return {
            row[0] for row in raw.execute(*self._statement(self._sql.present, ids=json.dumps(list(ids)))).fetchall()
        }

    def add(self, raw: Transaction, table: str, columns: Sequence[str], after: Key | None, rows: Sequence[Row]) -> None:
        """Add rows behind all others, and read them back."""
        self._insert(raw, table, columns, rows)
        if raw.execute(*self._block(table, columns, after, len(rows) + 1)).fetchall() != rows:
            raise StoreError(f"{self.shown}: {table} after {after} differs from what was written")

    def finish(self, raw: Transaction, sequences: Mapping[str, int], notes: Mapping[str, str | None]) -> None:
        """The sequences continue behind these ids."""
        for statement in self._parts(self._sql.raise_sequences):
            raw.execute(*self._statement(statement, **sequences))
        self._note(raw, notes)

    def _note(self, raw: Transaction, notes: Mapping[str, str | None]) -> None:
        queries = self._connection.queries
        for name, value in notes.items():
            if value is None:
                raw.execute(queries.delete_meta, {"key": name})
            else:
                raw.execute(queries.set_meta, {"key": name, "value": value})

    def close(self) -> None:
        self._connection.close()
        self._other.close()

    # Statements

    def _listed(self, table: str, columns: Sequence[str]) -> str:
        return ", ".join(self._name(table, column) for column in columns)

    def _block(self, table: str, columns: Sequence[str], after: Key | None, limit: int) -> tuple[str, dict[str, Any]]:
        sql = _SQL.block.format(
            columns=self._listed(table, columns),
            table=table,
            where=self._where(table, after),
            order=", ".join(self._name(table, name, ordered=True) for name in KEYS[table]),
        )
        return self._statement(sql, **dict(zip("ab", after or (), strict=False)), limit=limit)

    def _where(self, table: str, after: Key | None) -> str:
        """The rows behind a key; of job_meta without what is the database's own."""
        parts = ["1 = 1"]
        if after is not None:
            key = ", ".join(self._name(table, name, ordered=True) for name in KEYS[table])
            parts.append(f"({key}) > ({', '.join(f':{letter}' for letter in 'ab'[: len(after)])})")
        if table == "job_meta":
            parts.append(f"key NOT IN ({', '.join(map(literal, _NOT_MOVED))})")
        return " AND ".join(parts)


class _Undo(Exception):
    """Ends a transaction that changes nothing."""
