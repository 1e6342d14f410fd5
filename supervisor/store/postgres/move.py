"""A server's database as one side of a move."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

from supervisor.store.moving import MoveEnd, Unfit
from supervisor.store.postgres import schema
from supervisor.store.postgres.address import Address
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.maintenance import PostgresRegistry
from supervisor.store.postgres.statements import for_driver
from supervisor.store.sql.connection import Queries, Row, load

SQL: Queries = load("supervisor.store.postgres", "move.sql")

_LARGEST = {"bigint": 2**63, "integer": 2**31}
_REAL = "double precision"
_TEXTS = {
    ("job_controls", "kind"),
    ("job_meta", "key"),
}  # keys that have the database's order, which others do not know
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
        self._types: Callable[[str], dict[str, str]] = cache(
            lambda table: dict(connection.rows(*self._statement(SQL.columns, table=table)))
        )

    def columns(self, table: str) -> list[str]:
        return [name for name in self._types(table) if name not in _ADDED.get(table, ())]

    def fitted(self, table: str, columns: Sequence[str], row: Row) -> Row | Unfit:
        types, changed = self._types(table), list(row)
        for at, (column, value) in enumerate(zip(columns, row, strict=True)):
            kind = types[column]
            if value is None or (value.__class__ is float and kind == _REAL):
                continue
            if kind == "text":
                if value.__class__ is not str:
                    return Unfit(column, "not text" if not isinstance(value, bytes) else "not valid UTF-8")
                if "\0" in value:
                    return Unfit(column, "a text with a NUL character")
            elif kind == _REAL:
                seconds = _seconds(value)
                if seconds is None:
                    return Unfit(column, "not a number")
                changed[at] = seconds
            elif value.__class__ is not int or not -_LARGEST[kind] <= value < _LARGEST[kind]:
                return Unfit(column, "not a whole number" if value.__class__ is not int else "too large a number")
        return tuple(changed)

    def _name(self, table: str, column: str, *, ordered: bool = False) -> str:
        name = super()._name(table, column)
        return f'{name} COLLATE "C"' if ordered and (table, column) in _TEXTS else name

    def _statement(self, sql: str, **values: Any) -> tuple[str, dict[str, Any]]:
        return _for_driver(sql), values

    def _insert(self, raw: Any, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        added = _ADDED.get(table, {})
        names, values = self._listed(table, [*columns, *added]), tuple(added.values())
        raw.copy_rows(SQL.insert.format(table=table, columns=names), (row + values for row in rows))


def _seconds(value: Any) -> float | None:
    """What an adopted table has for a time: a whole number, or a text with a date."""
    if value.__class__ is int and abs(value) <= 2**53:
        return float(value)
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.datetime.fromisoformat(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp()
