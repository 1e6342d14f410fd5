"""Numbered migrations: `0001_name.sql`, applied in order, each file once.

Releases before a migration go on working on the schema after it: it adds, and what they know stays. One that takes
something away from them has a line that begins with `-- contracts:` and says what: programs that do not know it must
not write any more.
"""

from __future__ import annotations

import functools
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

from supervisor.domain.errors import StoreError, StoreMoved, StoreUnavailable
from supervisor.store.moving import ARRIVING, CLOSED_FOR, MOVED_TO, MoveWords

_NAME = re.compile(r"(\d{4})_\w+\.sql")
_CONTRACTS = re.compile(r"^-- contracts:", re.M)


class Migration(NamedTuple):
    version: int
    name: str
    sql: str

    @property
    def contracts(self) -> bool:
        return _CONTRACTS.search(self.sql) is not None


def migrations(folder: Traversable) -> list[Migration]:
    """The migrations of a folder, in order. Raises ValueError if the numbers have gaps."""
    found = []
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        match = _NAME.fullmatch(file.name)
        if match:
            found.append(Migration(int(match[1]), file.name, file.read_text(encoding="utf-8")))
    if [m.version for m in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations are not numbered one by one: {[m.name for m in found]}")
    return found


@functools.cache
def shipped(package: str) -> tuple[Migration, ...]:
    """Those of a package of ours."""
    return tuple(migrations(resources.files(package).joinpath("migrations")))


def flags_of(plan: Sequence[Migration], all_until: int) -> dict[str, str]:
    """The rows of job_meta that say what a schema is after all these migrations, and who may write.

    Those up to `all_until` are older than the rule, and each of them shuts out earlier programs.
    """
    contracting = [one.version for one in plan if one.contracts or one.version <= all_until]
    return {"schema_version": str(plan[-1].version), "oldest_writer": str(max(contracting, default=1))}


def statements(sql: str) -> Iterator[str]:
    """Split a script into statements; a trigger's inner semicolons do not end it."""
    pending = ""
    for line in sql.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip() and not all(line.lstrip().startswith("--") for line in pending.strip().splitlines()):
        raise ValueError(f"the script ends in the middle of a statement: {pending.strip()[:80]}")


def refuse_if_unusable(flags: Mapping[str, str], current: int, ours: int, where: object) -> None:
    """Raises StoreError if the schema `current` declares a program that knows only `ours` too old to write, StoreMoved
    if the jobs were moved elsewhere, and StoreUnavailable while they are.

    `flags` are the rows of job_meta that say so.
    """
    if int(flags.get("oldest_writer", 0)) > ours:
        raise StoreError(
            f"the database has schema {current}, which programs before schema {flags['oldest_writer']} must not write; "
            f"this one knows schema {ours}: upgrade it"
        )
    if MOVED_TO in flags:
        raise StoreMoved(str(where), flags[MOVED_TO])
    if CLOSED_FOR in flags:
        raise StoreUnavailable(f"{where}: {MoveWords.CLOSED.format(flags[CLOSED_FOR])}")
    if ARRIVING in flags:
        raise StoreUnavailable(f"{where}: {MoveWords.OPENING}")
