"""A server's database as one side of a move."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from supervisor.store.moving import MoveEnd
from supervisor.store.postgres import schema
from supervisor.store.postgres.address import Address
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.maintenance import PostgresRegistry
from supervisor.store.postgres.statements import for_driver
from supervisor.store.sql.connection import Queries, Row, load

SQL: Queries = load("supervisor.store.postgres", "move.sql")

_LARGEST = {"bigint": 2**63, "integer": 2**31}
_REAL = "double precision"
# Of this engine alone: what rows of another one get.
_ADDED = {"job_supervisors": {"lease_until": 0.0, "node": None, "posted": None}}

_for_driver = lru_cache(maxsize=256)(for_driver)


class PostgresMoveEnd(MoveEnd):
    _sql = SQL

    def __init__(self, address: Address) -> None:
        connection, other = Connection(address), Connection(address)
        super().__init__(connection, address.shown, PostgresRegistry(other), other)
        try:
            schema.require_version(connection)
        except BaseException:
            self.close()
            raise
        self._types: dict[str, dict[str, str]] = {}  # by table and column

    def columns(self, table: str) -> list[str]:
        if table not in self._types:
            self._types[table] = dict(self._connection.rows(_for_driver(SQL.columns), {"table": table}))
        return [name for name in self._types[table] if name not in _ADDED.get(table, ())]

    def fitted(self, table: str, columns: Sequence[str], row: Row) -> Row | str:
        types, changed = self._types[table], list(row)
        for at, (column, value) in enumerate(zip(columns, row, strict=True)):
            kind = types[column]
            if value is None or (value.__class__ is float and kind == _REAL):
                continue
            if kind == "text":
                if value.__class__ is not str:
                    return f"{column}: not {'valid UTF-8' if isinstance(value, bytes) else 'text'}"
                if "\0" in value:
                    return f"{column}: a text with a NUL character"
            elif kind == _REAL:
                changed[at] = _seconds(value)
                if changed[at] is None:
                    return f"{column}: not a number"
            elif value.__class__ is not int or not -_LARGEST[kind] <= value < _LARGEST[kind]:
                return f"{column}: not a whole number, or too large a one"
        return tuple(changed)

    def _name(self, table: str, column: str) -> str:
        """This key alone has the order of the database, which others do not know."""
        name = super()._name(table, column)
        return f'{name} COLLATE "C"' if (table, column) == ("job_meta", "key") else name

    def _statement(self, sql: str) -> str:
        return _for_driver(sql)

    def _insert(self, raw: Any, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        added = _ADDED.get(table, {})
        names, values = ", ".join(f'"{name}"' for name in [*columns, *added]), tuple(added.values())
        raw.copy_rows(SQL.insert.format(table=table, columns=names), (row + values for row in rows))


def _seconds(value: Any) -> float | None:
    """What an adopted table has for a time: a whole number, or a text with a date."""
    if value.__class__ is int and abs(value) <= 2**53:
        return float(value)
    try:
        moment = datetime.datetime.fromisoformat(value)
    except (ValueError, TypeError):
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()
