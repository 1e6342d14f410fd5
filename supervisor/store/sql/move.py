"""One side of a move from one engine to another: reads and writes the rows of a table in blocks, in the order of a key.

Blocks of both sides can be compared: columns are named by the caller, and keys are in the order of their bytes.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from supervisor.store.moving import MOVE_KEYS, MOVE_WRITER
from supervisor.store.queries import Queries
from supervisor.store.sql.connection import Connection, Row, RowRefused, Transaction
from supervisor.store.sql.registry import Registry

# Rules of uniqueness beside the keys: who breaks them in a row that was copied earlier has changed meanwhile.
_FREED = {"jobs": ("type", "unique_key"), "job_runs": ("job_id", "token")}
_NOT_MOVED = ("schema", "oldest_writer", "epoch", "vacuum", *MOVE_KEYS)


class Undo(Exception):
    """Ends a transaction that was only a trial."""


class SqlMoveEnd:
    """Implements a part of `store.moving.MoveEnd`. `registry` has a connection of its own: it looks during writes."""

    _sql: Queries

    def __init__(self, connection: Connection, shown: str, registry: Registry) -> None:
        self._connection = connection
        self.shown = shown
        self._registry = registry

    # What an engine does in its own way

    def _name(self, table: str, column: str) -> str:
        """In a list of columns."""
        return f'"{column}"'

    def _ordered(self, table: str, column: str) -> str:
        """In a key."""
        return self._name(table, column)

    def _run(self, raw: Transaction, sql: str, parameters: Any = None) -> Any:
        raise NotImplementedError

    def _rows(self, sql: str, parameters: Any = None) -> list[Row]:
        raise NotImplementedError

    def _insert(self, raw: Transaction, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        raise NotImplementedError

    # Looking

    def flags(self) -> dict[str, str]:
        found = self._rows(self._connection.queries.flags)
        return {str(key): str(value) for key, value in found}

    def epoch(self) -> str:
        found = self._rows(self._sql.meta, {"key": "epoch"})
        return str(found[0][0]) if found else ""

    def running(self) -> list[str]:
        known = self._registry.supervisors()
        return [f"{one.pid} on {one.host}" for one in known if self._registry.owner_lives(one) is not False]

    def count(self, table: str) -> int:
        where, values = self._where(table, (), ())
        return int(self._rows(self._sql.count.format(table=table, where=where), values)[0][0])

    def block(
        self,
        table: str,
        key: Sequence[str],
        columns: Sequence[str],
        after: Sequence[Any] | None,
        *,
        until: Sequence[Any] | None = None,
        limit: int,
    ) -> list[Row]:
        where, values = self._where(table, key, _range(after, until))
        sql = self._sql.block.format(
            columns=self._listed(table, columns),
            table=table,
            where=where,
            order=", ".join(self._ordered(table, name) for name in key),
        )
        return self._rows(sql, values | {"limit": limit})

    def present(self, ids: Collection[int]) -> set[int]:
        return {row[0] for row in self._rows(self._sql.present, {"ids": self._many(ids)})} if ids else set()

    def _many(self, ids: Collection[int]) -> Any:
        return json.dumps(list(ids))

    def sequences(self) -> dict[str, int]:
        return {str(name): int(value or 0) for name, value in self._rows(self._sql.sequences)}

    def refusal(self, table: str, key: Sequence[str], columns: Sequence[str], row: Row) -> str:
        own = [row[columns.index(name)] for name in key]
        try:
            with self._connection.write() as raw:
                self._admit(raw)
                self._clear(raw, table, key, [("=", own)])
                self._free(raw, table, columns, [row])
                self._insert(raw, table, columns, [row])
                raise Undo
        except Undo:
            return ""
        except RowRefused as error:
            return str(error)

    # Writing

    def replace(
        self,
        table: str,
        key: Sequence[str],
        columns: Sequence[str],
        rows: Sequence[Row],
        *,
        after: Sequence[Any] | None,
        until: Sequence[Any] | None,
        notes: Mapping[str, str | None],
    ) -> None:
        with self._connection.write() as raw:
            self._admit(raw)
            self._clear(raw, table, key, _range(after, until))
            if rows:
                self._free(raw, table, columns, rows)
                self._insert(raw, table, columns, rows)
            self._run(raw, self._sql.forget, {"key": MOVE_WRITER})
            self._note(raw, notes)

    def _clear(self, raw: Transaction, table: str, key: Sequence[str], bounds: Sequence[Bound]) -> None:
        where, values = self._where(table, key, bounds)
        self._run(raw, self._sql.clear.format(table=table, where=where), values)

    def _admit(self, raw: Transaction) -> None:
        """Let this transaction write where all others are refused: nobody else sees the mark."""
        self._run(raw, self._sql.note, {"key": MOVE_WRITER, "value": ""})

    def _free(self, raw: Transaction, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        names = _FREED.get(table)
        if names is None:
            return
        places = [columns.index(name) for name in names]
        taken = [{name: row[at] for name, at in zip(names, places, strict=True)} for row in rows]
        if table == "jobs":
            at = columns.index("status")
            taken = [
                one
                for one, row in zip(taken, rows, strict=True)
                if one["unique_key"] is not None and row[at] in ("pending", "running")
            ]
        for one in taken:
            self._run(raw, getattr(self._sql, f"free_{table}"), one)

    def _note(self, raw: Transaction, notes: Mapping[str, str | None]) -> None:
        for name, value in notes.items():
            if value is None:
                self._run(raw, self._sql.forget, {"key": name})
            else:
                self._run(raw, self._sql.note, {"key": name, "value": value})

    def shut(self, message: str, notes: Mapping[str, str | None]) -> list[str]:
        running: list[str] = []
        with contextlib.suppress(Undo), self._connection.write() as raw:
            for statement in self._shutting(message):
                self._run(raw, statement)
            running = self.running()  # now that no other can begin
            if running:
                raise Undo
            self._note(raw, notes)
        return running

    def _shutting(self, message: str) -> Iterable[str]:
        raise NotImplementedError

    def _opening(self) -> Iterable[str]:
        raise NotImplementedError

    def open(self, sequences: Mapping[str, int], notes: Mapping[str, str | None]) -> None:
        with self._connection.write() as raw:
            for statement in self._opening():
                self._run(raw, statement)
            for name, value in sequences.items():
                self._raise_sequence(raw, name, value)
            self._note(raw, notes)

    def _raise_sequence(self, raw: Transaction, table: str, value: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._connection.close()

    # Statements

    def _listed(self, table: str, columns: Sequence[str]) -> str:
        return ", ".join(self._name(table, column) for column in columns)

    def _where(self, table: str, key: Sequence[str], bounds: Sequence[Bound]) -> tuple[str, dict[str, Any]]:
        """The rows whose keys are within these bounds; without our own keys of job_meta."""
        ordered = ", ".join(self._ordered(table, name) for name in key)
        parts, values = ["1 = 1"], dict[str, Any]()
        for (sign, bound), prefix in zip(bounds, ("first", "second"), strict=False):
            names = [f"{prefix}_{letter}" for letter in "ab"[: len(key)]]
            parts.append(f"({ordered}) {sign} ({', '.join(f':{name}' for name in names)})")
            values |= dict(zip(names, bound, strict=True))
        if table == "job_meta":
            parts.append(f"key NOT IN ({', '.join(map(literal, _NOT_MOVED))})")
        return " AND ".join(parts), values


Bound = tuple[str, Sequence[Any]]
"""A sign and a key."""


def _range(after: Sequence[Any] | None, until: Sequence[Any] | None) -> list[Bound]:
    return [(sign, bound) for sign, bound in ((">", after), ("<=", until)) if bound is not None]


def literal(text: str) -> str:
    """A text in a statement."""
    return "'" + text.replace("'", "''") + "'"
