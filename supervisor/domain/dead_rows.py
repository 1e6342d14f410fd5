"""When a table is worth a VACUUM that the server's own has not made, and what would keep it from freeing anything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

FEW = 20_000  # dead rows that slow nothing down
SHARE = 0.05  # of the live rows
PATIENCE = 300.0  # seconds in which autovacuum had several chances
OLD = 60.0  # seconds: no transaction of ours takes so long
MANY_DEAD = 50_000  # dead rows, of which a person should know
MANY_XIDS = 100_000  # transactions since a replication slot, of which no age in seconds is known


class TableRows(NamedTuple):
    """One of our tables, as far as the server's statistics know. `vacuumed` is for how many seconds the last VACUUM has
    ended, None if there was none; `may`: whether this role may make one.
    """

    name: str
    live: int
    dead: int
    vacuumed: float | None
    may: bool
    busy: bool  # one is being made


class Keeper(NamedTuple):
    """What keeps dead rows from being removed: a transaction, a prepared one, or a replication slot. `seconds` is its
    age, None if that is not known; `xids` is how many transactions have begun since.
    """

    kind: str
    who: str
    seconds: float | None
    xids: int

    @property
    def long(self) -> bool:
        return self.xids > MANY_XIDS if self.seconds is None else self.seconds > OLD


def many(table: TableRows) -> bool:
    """Whether so many rows are dead that reading the table becomes slower."""
    return table.dead > FEW + SHARE * table.live


def worth(tables: Iterable[TableRows]) -> TableRows | None:
    """The table that needs a VACUUM most, if one does and we may."""
    found = [
        table
        for table in tables
        if many(table) and table.may and not table.busy and (table.vacuumed is None or table.vacuumed > PATIENCE)
    ]
    return max(found, key=lambda table: table.dead, default=None)


def strongest(keepers: Iterable[Keeper]) -> Keeper | None:
    """The one that keeps the most dead rows."""
    return max(keepers, key=lambda keeper: (keeper.xids, keeper.seconds or 0.0), default=None)
