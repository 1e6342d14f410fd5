"""Another program's plain connection to each engine's database: it knows nothing of claims."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class UniqueBroken(Exception):
    """The database refused a statement because of a unique index."""


class Program(Protocol):
    """Statements in autocommit, as plain as any language sends them."""

    def run(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]: ...

    def damage(self) -> list[str]: ...

    def close(self) -> None: ...


class SqliteProgram:
    def __init__(self, url: str) -> None:
        self._raw = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=10)

    def run(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Returns the rows. Raises UniqueBroken."""
        try:
            return self._raw.execute(sql, parameters).fetchall()
        except sqlite3.IntegrityError as error:
            raise UniqueBroken(str(error)) from None

    def damage(self) -> list[str]:
        """What the engine's own check of the whole database complains of."""
        checks = [row[0] for row in self._raw.execute("PRAGMA integrity_check")]
        dangling = [str(row) for row in self._raw.execute("PRAGMA foreign_key_check")]
        return [text for text in checks if text != "ok"] + dangling

    def close(self) -> None:
        self._raw.close()


class PostgresProgram:
    def __init__(self, url: str) -> None:
        import psycopg

        self._driver = psycopg
        self._raw = psycopg.connect(url, autocommit=True)

    def run(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Returns the rows. Raises UniqueBroken."""
        try:
            cursor = self._raw.execute(sql.replace("?", "%s"), list(parameters))
        except self._driver.errors.UniqueViolation as error:
            raise UniqueBroken(str(error)) from None
        return cursor.fetchall() if cursor.description else []

    def damage(self) -> list[str]:
        return []

    def close(self) -> None:
        self._raw.close()


PROGRAMS: dict[str, Callable[[str], Program]] = {"sqlite": SqliteProgram, "postgres": PostgresProgram}
