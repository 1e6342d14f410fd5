"""An SQLite file as one side of a move."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from supervisor.store.moving import Unfit
from supervisor.store.queries import Queries, load
from supervisor.store.sql.connection import Row
from supervisor.store.sql.move import SqlMoveEnd, literal
from supervisor.store.sqlite import schema
from supervisor.store.sqlite.connection import Connection
from supervisor.store.sqlite.maintenance import registry
from supervisor.store.sqlite.place import Place

SQL: Queries = load("supervisor.store.sqlite", "move.sql")

_TRIGGERS = (
    ("jobs_closed_insert", "INSERT", "jobs"),
    ("jobs_closed_update", "UPDATE", "jobs"),
    ("jobs_closed_delete", "DELETE", "jobs"),
    ("supervisors_closed", "INSERT", "job_supervisors"),
)


def move_end(place: Place, *, planned: bool) -> SqliteMoveEnd:
    """Raises StoreError if there are no job tables, or those of another version."""
    if planned and not (place.database.exists() and schema.has_tables(place)):
        folder = TemporaryDirectory(prefix="supervisor-move-")
        own = Place(Path(folder.name) / "plan.db")
        with closing(Connection(own, synchronous="NORMAL", create=True)) as connection:
            schema.migrate(connection)
        return SqliteMoveEnd(own, shown=place, folder=folder)
    schema.require_version(place)
    return SqliteMoveEnd(place)


class SqliteMoveEnd(SqlMoveEnd):
    """Implements `store.moving.MoveEnd`."""

    _sql = SQL

    def __init__(self, place: Place, shown: Place | None = None, folder: TemporaryDirectory[str] | None = None) -> None:
        self._own = connection = Connection(place, synchronous="FULL", checkpoints=True)
        self._folder = folder  # removed in the end
        self._other = Connection(place, synchronous="FULL")
        super().__init__(connection, f"sqlite:///{(shown or place).database}", registry(self._other))

    def close(self) -> None:
        super().close()
        self._other.close()
        if self._folder is not None:
            self._folder.cleanup()

    def columns(self, table: str) -> list[str]:
        names = [str(row[0]) for row in self._rows(SQL.columns, {"table": table})]
        return [*names, "number"] if table == "job_runs" else names

    def fitted(self, table: str, columns: Sequence[str], row: Row) -> Row | Unfit:
        for column, value in zip(columns, row, strict=True):
            if isinstance(value, float) and math.isnan(value):
                return Unfit(column, "a number that SQLite has none for, NaN")
        return row

    def _name(self, table: str, column: str) -> str:
        """The order in which runs were written is that of their rowids here."""
        return "rowid" if (table, column) == ("job_runs", "number") else super()._name(table, column)

    def _run(self, raw: Any, sql: str, parameters: Any = None) -> Any:
        return raw.execute(sql, parameters or ())

    def _rows(self, sql: str, parameters: Any = None) -> list[Row]:
        return self._own.rows(sql, parameters or ())

    def _insert(self, raw: Any, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        values = ", ".join("?" * len(columns))
        raw.executemany(SQL.insert.format(table=table, columns=self._listed(table, columns), values=values), rows)

    def _shutting(self, message: str) -> Iterator[str]:
        yield from self._opening()
        for name, event, table in _TRIGGERS:
            yield SQL.shut.format(name=name, event=event, table=table, message=literal(message))

    def _opening(self) -> Iterator[str]:
        for name, _, _ in _TRIGGERS:
            yield SQL.open.format(name=name)

    def _raise_sequence(self, raw: Any, table: str, value: int) -> None:
        if table != "job_runs":  # rowids go on from the greatest
            raw.execute(SQL.add_sequence, {"name": table})
            raw.execute(SQL.raise_sequence, {"name": table, "value": value})
