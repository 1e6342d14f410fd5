"""The schema of an engine: `schema.sql` is version 1, `migrations/0002_name.sql` and so on come after it.

Releases before a migration go on working on the schema after it: it adds, and what they know stays. One that takes
something away from them has a line that begins with `-- contracts:` and says what: programs that do not know it must
not write any more.
"""

from __future__ import annotations

import functools
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from supervisor.domain.errors import NoTables, StoreError, StoreMoved, StoreOutdated, StoreUnavailable
from supervisor.store.moving import BEING_MOVED, CLOSED_FOR, MOVED_TO
from supervisor.store.sql.connection import Queries

Rows = Callable[[str], Iterable[Sequence[Any]]]
"""Runs a statement."""

_LATEST = "job_limits"  # the table that was added last before the first release
VERSION = "schema"  # the key of job_meta that has the version
_OLDEST = "oldest_writer"
_NAME = re.compile(r"(\d{4})_\w+\.sql")
_made_by = functools.cache(re.compile(r"^CREATE (?:UNLOGGED )?TABLE (\w+)", re.M).findall)
_CONTRACTS = re.compile(r"^-- contracts:", re.M)


class Migration(NamedTuple):
    version: int
    name: str
    sql: str

    @property
    def contracts(self) -> bool:
        return _CONTRACTS.search(self.sql) is not None


def plan_of(folder: Path) -> tuple[Migration, ...]:
    """The schema of a folder and its migrations, in order. Raises ValueError if the numbers have gaps."""
    found = [Migration(1, "schema.sql", folder.joinpath("schema.sql").read_text(encoding="utf-8"))]
    later = folder.joinpath("migrations")
    for file in sorted(later.iterdir(), key=lambda entry: entry.name) if later.is_dir() else ():
        if match := _NAME.fullmatch(file.name):
            found.append(Migration(int(match[1]), file.name, file.read_text(encoding="utf-8")))
    if [one.version for one in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations are not numbered one by one: {[one.name for one in found]}")
    return tuple(found)


@functools.cache
def shipped(package: str) -> tuple[Migration, ...]:
    """That of a package of ours."""
    return plan_of(Path(str(import_module(package).__file__)).parent)


def flags_of(plan: Sequence[Migration]) -> dict[str, str]:
    """The rows of job_meta that say what a schema is after all these migrations, and who may write."""
    contracting = [one.version for one in plan if one.contracts]
    return {VERSION: str(plan[-1].version), _OLDEST: str(max(contracting, default=1))}


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


class Known(NamedTuple):
    """What a database says of its job tables. `version` is 0 if it has none; `plan` is what this program knows."""

    where: object
    plan: Sequence[Migration]
    version: int
    flags: Mapping[str, str]

    @property
    def ours(self) -> int:
        return self.plan[-1].version

    @property
    def missing(self) -> list[Migration]:
        """What brings it up to date."""
        return [one for one in self.plan if one.version > self.version]

    def require_version(self) -> Known:
        """Raises NoTables, or StoreError for older ones."""
        if self.version < self.ours:
            older = f"has schema {self.version}, older than {self.ours}"
            problem = older if self.version else "has no job tables yet"
            kind = StoreError if self.version else NoTables
            raise kind(f"{self.where}: the database {problem}; `supervisor migrate` fixes that")
        return self

    def require_usable(self) -> Known:
        """Raises StoreError if the schema declares this program too old to write, StoreMoved if the jobs were moved
        elsewhere, and StoreUnavailable while they are.
        """
        flags = self.flags
        if int(flags.get(_OLDEST, 0)) > self.ours:
            raise StoreError(
                f"the database has schema {self.version}, which programs before schema {flags[_OLDEST]} must not "
                f"write; this one knows schema {self.ours}: upgrade it"
            )
        if MOVED_TO in flags:
            raise StoreMoved(str(self.where), flags[MOVED_TO])
        if CLOSED_FOR in flags:
            raise StoreUnavailable(f"{self.where}: {BEING_MOVED.format(flags[CLOSED_FOR])}")
        return self

    def too_late(self, hint: str) -> StoreError:
        """For a caller's connection that finds no tables, or older ones, and cannot wait for them."""
        problem = f"have schema {self.version}, older than {self.ours}" if self.version else "are missing"
        return StoreError(f"{self.where}: the job tables {problem}{hint}")


def known(rows: Rows, queries: Queries, where: object, plan: Sequence[Migration], others: str) -> Known:
    """Look at the tables. Raises StoreOutdated if they are from before the first release, and are never migrated;
    StoreError if some are gone, or, ending with `others`, if they are another program's; and the driver's errors.
    """
    names = {_plain(row[0]) for row in rows(queries.tables)}
    if "job_meta" in names:
        flags = {_plain(key): _plain(value) for key, value in rows(queries.flags)}
        if VERSION not in flags or _LATEST not in names:
            raise StoreOutdated(
                f"{where}: its job tables are from before the first release, and this program cannot use them: export "
                "what you need with SQL, move them away, and start with new ones"
            )
        if gone := ", ".join(sorted({*_made_by(plan[0].sql)} - names)):
            raise StoreError(f"{where}: of the job tables, these are gone: {gone}; stop all programs, restore a backup")
        return Known(where, plan, int(flags[VERSION]), flags)
    if "jobs" in names:
        raise StoreError(f"the database has a `jobs` table of another program; {others}")
    return Known(where, plan, 0, {})


def _plain(name: str | bytes) -> str:
    """A caller's connection may return texts as bytes."""
    return name.decode() if isinstance(name, bytes) else name
