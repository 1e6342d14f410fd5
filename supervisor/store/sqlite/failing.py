"""A connection on which every named statement is a place to fail at: for tests, see CONTRIBUTING.md.

The statement `settle` offers `settle.before`, `settle` (it has run; a transaction is still open) and
`settle.committed` (so is the transaction that it was part of; without one, that is at once).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import Any, Self

from supervisor.domain.errors import ConfigError
from supervisor.system import failpoints

_names: dict[str, str] = {}  # by the statement's text


def connection_type(statements: Mapping[str, str]) -> type[sqlite3.Connection]:
    """What to connect with. Raises ConfigError if the environment names a place that is none."""
    try:
        failpoints.verify(f"{name}{when}" for name in statements for when in (".before", "", ".committed"))
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    _names.update({text: name for name, text in statements.items()})
    return _Connection


class _Connection(sqlite3.Connection):
    """Not every driver's version makes its cursors by `cursor`, so whatever executes is overridden, too."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._uncommitted: list[str] = []

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(_Cursor if factory is None else factory)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        return _Cursor(self).execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        return _Cursor(self).executemany(sql, parameters)

    def run(self, sql: str, execute: Callable[[], object]) -> None:
        """Run a statement with its places around it."""
        name, open_before = _names.get(sql), self.in_transaction
        if not open_before:
            self._uncommitted = []  # of a transaction that an error ended
        if name is not None:
            failpoints.reach(f"{name}.before")
        execute()
        if name is not None:
            failpoints.reach(name)
            self._uncommitted.append(name)
        if not self.in_transaction:
            self._end(committed=not sql.startswith("ROLLBACK"))

    def _end(self, *, committed: bool) -> None:
        """No transaction is open (any more)."""
        ran, self._uncommitted = dict.fromkeys(self._uncommitted), []
        for name in ran if committed else ():
            failpoints.reach(f"{name}.committed")


class _Cursor(sqlite3.Cursor):
    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        self._around(sql, lambda: super(_Cursor, self).execute(sql, parameters))
        return self

    def executemany(self, sql: str, parameters: Any, /) -> Self:
        self._around(sql, lambda: super(_Cursor, self).executemany(sql, parameters))
        return self

    def _around(self, sql: str, execute: Callable[[], object]) -> None:
        connection = self.connection
        if isinstance(connection, _Connection):
            connection.run(sql, execute)
        else:
            execute()
