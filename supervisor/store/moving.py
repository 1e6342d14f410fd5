"""One side of `supervisor move`, and what a move notes in a database.

Rows are read and written table by table, in the order of a key. Columns are named by the caller, and keys are in the
order of their bytes, so that both engines agree.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from supervisor.domain.errors import StoreError
from supervisor.store.sql.connection import Connection, Queries, Row, Transaction, literal

if TYPE_CHECKING:
    from supervisor.store.sql.registry import Registry

# The keys of job_meta. At the source: where the jobs go, and where they have gone. At the target: how far the move is,
# and whence the jobs came. Last, never committed: that this transaction may write.
CLOSED_FOR, MOVED_TO, ARRIVING, MOVED_FROM, MOVE_WRITER = MOVE_KEYS = (
    "closed_for",
    "moved_to",
    "arriving",
    "moved_from",
    "move_writer",
)
_NOT_MOVED = ("schema", "oldest_writer", "epoch", *MOVE_KEYS)

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

Key = Sequence[Any]
"""A row's values in the columns of a table's key."""


class MoveWords:
    """What whoever changes jobs is told: at the source, with the target's URL, and at the target."""

    CLOSED = "the jobs are being moved to {}; try again when that is done, or repeat `supervisor move`"
    MOVED = "the jobs were moved to {}; use that URL"
    OPENING = "jobs are being moved here; try again when that is done, or repeat `supervisor move`"


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

    def _for_driver(self, sql: str) -> str:
        return sql

    def _insert(self, raw: Any, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        raise NotImplementedError

    def _statements(self, script: str) -> Iterable[str]:
        """What can be executed at once."""
        return [script]

    # Looking

    def flags(self) -> dict[str, str]:
        return {str(key): str(value) for key, value in self._connection.rows(self._connection.queries.flags)}

    def epoch(self) -> str:
        """Names this life of the database."""
        found = self._connection.rows(*self._statement(self._sql.meta, key="epoch"))
        return str(found[0][0]) if found else ""

    def running(self) -> list[str]:
        """The supervisors that run on this database, or may do so."""
        known = self._registry.supervisors()
        return [f"{one.pid} on {one.host}" for one in known if self._registry.owner_lives(one) is not False]

    def count(self, table: str) -> int:
        sql = self._sql.count.format(table=table, where=self._where(table, None))
        return int(self._connection.rows(*self._statement(sql))[0][0])

    def block(self, table: str, columns: Sequence[str], after: Key | None, limit: int) -> list[Row]:
        """The first rows behind a key, or from the beginning on."""
        return self._connection.rows(*self._block(table, columns, after, limit))

    def present(self, ids: Collection[int]) -> set[int]:
        """Those of these ids that jobs have."""
        found = self._connection.rows(*self._statement(self._sql.present, ids=json.dumps(list(ids)))) if ids else []
        return {row[0] for row in found}

    def sequences(self) -> dict[str, int]:
        """The greatest ids that were given, by table."""
        return {str(name): int(value or 0) for name, value in self._connection.rows(self._sql.sequences)}

    # Writing, also while the tables are shut

    def write(
        self,
        table: str,
        columns: Sequence[str],
        after: Key | None,
        rows: Sequence[Row],
        notes: Mapping[str, str | None],
    ) -> None:
        """Add rows behind all others, read them back, and note that; in one transaction. Raises RowRefused."""
        with self._connection.write() as raw:
            self._note(raw, {MOVE_WRITER: ""})  # lets this transaction write: nobody else sees it
            if rows:
                self._insert(raw, table, columns, rows)
                found = raw.execute(*self._block(table, columns, after, len(rows) + 1)).fetchall()
                if found != rows:
                    raise StoreError(f"{self.shown}: {table} after {after} differs from what was written")
            self._note(raw, {MOVE_WRITER: None, **notes})

    def clear(self, notes: Mapping[str, str | None]) -> None:
        """Delete everything, but for what makes the tables ours."""
        with self._connection.write() as raw:
            self._note(raw, {MOVE_WRITER: ""})
            for table in reversed(KEYS):
                raw.execute(self._sql.clear.format(table=table, where=self._where(table, None)))
            self._note(raw, {MOVE_WRITER: None, **notes})

    def shut(self, message: str, notes: Mapping[str, str | None]) -> list[str]:
        """From now on everybody who changes jobs gets this message. Not if supervisors run: returns them."""
        running: list[str] = []
        with contextlib.suppress(_Undo), self._connection.write() as raw:
            for statement in self._statements(self._sql.shut.format(message=literal(message))):
                raw.execute(statement)
            running = self.running()  # now that no other can begin
            if running:
                raise _Undo
            self._note(raw, notes)
        return running

    def open(self, sequences: Mapping[str, int], notes: Mapping[str, str | None]) -> None:
        """The end of that. The sequences continue behind these ids."""
        with self._connection.write() as raw:
            for statement in self._statements(self._sql.open):
                raw.execute(statement)
            for statement in self._statements(self._sql.raise_sequences) if sequences else ():
                raw.execute(*self._statement(statement, **sequences))
            self._note(raw, notes)

    def close(self) -> None:
        self._connection.close()
        self._other.close()

    # Statements

    def _statement(self, sql: str, **values: Any) -> tuple[str, dict[str, Any]]:
        return self._for_driver(sql), values

    def _note(self, raw: Transaction, notes: Mapping[str, str | None]) -> None:
        for name, value in notes.items():
            if value is None:
                raw.execute(*self._statement(self._sql.forget, key=name))
            else:
                raw.execute(*self._statement(self._sql.note, key=name, value=value))

    def _listed(self, table: str, columns: Sequence[str]) -> str:
        return ", ".join(self._name(table, column) for column in columns)

    def _block(self, table: str, columns: Sequence[str], after: Key | None, limit: int) -> tuple[str, dict[str, Any]]:
        sql = self._sql.block.format(
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
