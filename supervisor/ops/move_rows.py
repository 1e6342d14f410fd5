"""The rows of a move: those of the source in blocks, what the target makes of them, and what it has."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from supervisor.domain.errors import StoreError
from supervisor.store.moving import MoveEnd, Unfit

BLOCK = 1000  # rows

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
PARENT = "job_id"  # the column of what belongs to a job

Row = tuple[Any, ...]


class Aside(NamedTuple):
    """A row that the target cannot hold: it stays in the source."""

    table: str
    key: tuple[Any, ...]
    column: str
    problem: str


def digest(rows: Sequence[Row]) -> str:
    """Of a block of rows: the SHA-256 of their JSON, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()


class MoveRows:
    """The rows of both sides. `left` are the columns that the target does not have."""

    def __init__(self, source: MoveEnd, target: MoveEnd) -> None:
        self._source, self._target = source, target
        self.columns: dict[str, list[str]] = {}
        self.left: list[str] = []
        for table in KEYS:
            theirs, ours = source.columns(table), target.columns(table)
            self.columns[table] = [column for column in theirs if column in ours]
            self.left += [f"{table}.{column}" for column in theirs if column not in ours]

    def texts(self, table: str, rows: Sequence[Row]) -> int:
        """Jobs of an adopted table with a text for a time."""
        if table != "jobs":
            return 0
        at = [self.at(table, name) for name in ("created_at", "updated_at")]
        texts = [row for row in rows if any(row[place].__class__ is str for place in at)]
        return len(self.fitting(table, texts))

    def blocks(self, table: str, after: list[Any] | None) -> Iterator[list[Row]]:
        key, columns = KEYS[table], self.columns[table]
        while rows := self._source.block(table, key, columns, after, limit=BLOCK):
            after = self.key(table, rows[-1])
            yield rows

    def there(self, table: str, after: list[Any] | None, until: list[Any] | None, most: int) -> list[Row]:
        columns = self.columns[table]
        return self._target.block(table, KEYS[table], columns, after, until=until, limit=most + 1)

    def at(self, table: str, column: str) -> int:
        return self.columns[table].index(column)

    def key(self, table: str, row: Row) -> list[Any]:
        found = [row[self.at(table, column)] for column in KEYS[table]]
        if any(isinstance(part, bytes) or (isinstance(part, str) and "\0" in part) for part in found):
            raise StoreError(
                f"{self._source.shown}: {table} has a key that is no proper text, {found!r}; delete that row"
            )
        return found

    def fitting(
        self, table: str, rows: Sequence[Row], aside: Callable[[Aside], object] = lambda one: None
    ) -> list[Row]:
        """The rows as the target stores them, without those that it cannot hold."""
        columns, fitting = self.columns[table], list[Row]()
        for row in rows:
            found = self._target.fitted(table, columns, row)
            if isinstance(found, Unfit):
                aside(Aside(table, tuple(self.key(table, row)), found.column, found.problem))
            else:
                fitting.append(found)
        return fitting

    def parented(self, table: str, rows: list[Row], aside: Callable[[Aside], object] = lambda one: None) -> list[Row]:
        """Those whose job is in the target."""
        if PARENT not in self.columns[table]:
            return rows
        at = self.at(table, PARENT)
        return self.children(table, rows, self._target.present({row[at] for row in rows}), aside)

    def children(self, table: str, rows: list[Row], jobs: set[int], aside: Callable[[Aside], object]) -> list[Row]:
        at, kept = self.at(table, PARENT), list[Row]()
        for row in rows:
            if row[at] in jobs:
                kept.append(row)
            else:
                aside(Aside(table, tuple(self.key(table, row)), PARENT, "its job is missing, or set aside"))
        return kept
