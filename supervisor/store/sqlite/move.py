"""An SQLite file as one side of a move."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from supervisor.store.migrate import statements
from supervisor.store.moving import MoveEnd
from supervisor.store.sql.connection import Queries, Row, load
from supervisor.store.sqlite import schema
from supervisor.store.sqlite.connection import Connection
from supervisor.store.sqlite.files import DatabaseFiles
from supervisor.store.sqlite.producer import registry

SQL: Queries = load("supervisor.store.sqlite", "move.sql")


class SqliteMoveEnd(MoveEnd):
    _sql = SQL

    def __init__(self, files: DatabaseFiles) -> None:
        schema.require_version(files)
        other = Connection(files, synchronous="FULL")
        connection = Connection(files, synchronous="FULL", checkpoints=True)
        super().__init__(connection, f"sqlite:///{files.database}", registry(other), other)

    def shut(self, state: str, target: str) -> None:
        while self._connection.pass_gates():
            pass  # what happened until now is known here only
        super().shut(state, target)

    def columns(self, table: str) -> list[str]:
        names = [str(row[0]) for row in self._connection.rows(SQL.columns, {"table": table})]
        return [*names, "number"] if table == "job_runs" else names

    def fitted(self, table: str, columns: Sequence[str], row: Row) -> Row | str:
        for column, value in zip(columns, row, strict=True):
            if isinstance(value, float) and math.isnan(value):
                return f"{column}: a number that SQLite has none for, NaN"
        return row

    def _name(self, table: str, column: str) -> str:
        """The order in which runs were written is that of their rowids here."""
        return "rowid" if (table, column) == ("job_runs", "number") else super()._name(table, column)

    def _insert(self, raw: Any, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        values = ", ".join("?" * len(columns))
        raw.executemany(SQL.insert.format(table=table, columns=self._listed(table, columns), values=values), rows)

    def _parts(self, script: str) -> Iterator[str]:
        return statements(f"{script};")
