"""Tables as they stand in a database, the application's and our own: columns, constraints, and everything around.

SQLite keeps the text of a definition and offers no other way to learn its CHECKs, so whoever rebuilds a table has to
read it. Nothing here understands expressions; it only finds where things begin and end.
"""

from __future__ import annotations

import functools
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import NamedTuple

from supervisor.domain.errors import NothingToAdopt, StoreError
from supervisor.store.migrate import shipped, statements
from supervisor.store.sql.connection import Queries, load

SQL: Queries = load("supervisor.store.sqlite.adopt", "adopt.sql")

TABLE = "jobs"
_TOKEN = re.compile(
    r"""(?P<skip>\s+|--[^\n]*|/\*.*?\*/)
      | (?P<text>'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\])
      | (?P<word>\w+)
      | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_CONSTRAINTS = frozenset(("CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "FOREIGN"))


class Item(NamedTuple):
    """A column or a constraint."""

    column: str  # its name; empty for a constraint
    text: str
    keywords: frozenset[str]  # words outside parentheses, in capitals
    names: frozenset[str]  # everything that may name a column, in lower case
    literals: tuple[str, ...]


class Column(NamedTuple):
    """`item` is its definition as it was written."""

    name: str
    declared: str  # its type, empty if none is declared
    not_null: bool
    default: str | None
    generated: bool
    item: Item

    @property
    def is_time(self) -> bool:
        """Whether it is one of ours that holds a time that decides something."""
        return self.name.endswith("_at") and self.declared == "REAL"

    @property
    def check(self) -> str:
        """The expression of the CHECK of a column of ours, which ends its definition; empty if it has none."""
        return self.item.text.partition("CHECK ")[2]

    @property
    def types(self) -> str:
        """What STRICT would hold of a column of ours, for typeof(). Empty where any type is allowed: a job whose
        payload is not JSON fails with a clear error, and no decision depends on the others.
        """
        if self.name in ("id", "payload", "last_error") or self.declared == "ANY":
            return ""
        return f"'{self.declared.lower()}'" + ("" if self.not_null else ", 'null'")


class Table(NamedTuple):
    """A table as the application created it."""

    name: str
    columns: tuple[Column, ...]
    constraints: tuple[Item, ...]
    key: str  # the column that is the primary key
    indexes: tuple[str, ...]
    triggers: tuple[str, ...]
    pointing: tuple[tuple[str, str, str], ...]  # (table, column, ON DELETE) of other tables' foreign keys
    reading: tuple[tuple[str, str, str], ...]  # (kind, name, text) of all triggers and views

    def column(self, name: str) -> Column | None:
        """A column by its name; case does not matter, as in SQL."""
        return next((column for column in self.columns if column.name.lower() == name.lower()), None)


class Ours(NamedTuple):
    """What our schema makes: the columns of `jobs` that an adopted table is to have, and the names of everything."""

    columns: Mapping[str, Column]
    names: frozenset[str]


@functools.cache
def our_schema() -> Ours:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as model:
        for migration in shipped("supervisor.store.sqlite"):
            for statement in statements(migration.sql):
                model.execute(statement)
        objects = model.execute(SQL.objects).fetchall()
        [sql] = [row[3] for row in objects if row[:2] == ("table", TABLE)]
        columns = _columns(model, TABLE, list(split(sql)))
    return Ours(
        {column.name: column for column in columns},
        frozenset(row[1] for row in objects if not row[1].startswith("sqlite_")) - {TABLE},
    )


def read(raw: sqlite3.Connection, table: str) -> Table:
    """Read the table. Raises NothingToAdopt if it is ours, and StoreError if its shape cannot be taken over."""
    objects = raw.execute(SQL.objects).fetchall()
    if any(name.lower() == "job_meta" for _, name, _, _ in objects):
        raise NothingToAdopt("the jobs table is job-supervisor's already; there is nothing to adopt")
    row = raw.execute(SQL.kind, {"table": table}).fetchone()
    if row is None:
        hint = "`supervisor migrate` makes one" if table == TABLE else "--table names the application's table"
        raise StoreError(f"there is no table `{table}` to adopt; {hint}")
    kind, without_rowid = row
    if kind != "table" or without_rowid:
        raise StoreError(f"`{table}` is no ordinary table (a view, a virtual table, or WITHOUT ROWID)")
    name, sql = next((o[1], o[3]) for o in objects if o[0] == "table" and o[1].lower() == table.lower())
    items = list(split(sql))
    keys = [row[0] for row in raw.execute(SQL.columns, {"table": name}) if row[4]]
    columns = _columns(raw, name, items)
    if not columns:
        raise refusal(["its definition cannot be read"])
    taken = frozenset(o[1].lower() for o in objects if o[1] != name)
    reasons = [f"the name `{one}` is needed by job-supervisor; rename that first" for one in taken & our_schema().names]
    if len(keys) != 1:
        reasons.append("it needs a primary key of one column")
    if reasons:
        raise refusal(sorted(reasons))
    mine = [o for o in objects if o[2].lower() == name.lower() and o[3]]
    return Table(
        name,
        columns,
        tuple(item for item in items if not item.column),
        keys[0],
        tuple(o[3] for o in mine if o[0] == "index"),
        tuple(o[3] for o in mine if o[0] == "trigger"),
        tuple(raw.execute(SQL.pointing_here, {"table": name}).fetchall()),
        tuple((o[0], o[1], o[3]) for o in objects if o[0] in ("trigger", "view")),
    )


def _columns(raw: sqlite3.Connection, table: str, items: list[Item]) -> tuple[Column, ...]:
    """Empty if what SQLite says and the definition do not agree."""
    described = raw.execute(SQL.columns, {"table": table}).fetchall()
    written = [item for item in items if item.column]
    if [row[0] for row in described] != [item.column for item in written]:
        return ()
    return tuple(
        Column(name, declared, bool(not_null), default, bool(hidden), item)
        for (name, declared, not_null, default, _, hidden), item in zip(described, written, strict=True)
    )


def refusal(reasons: list[str]) -> StoreError:
    return StoreError("the jobs table cannot be adopted as it is: " + "; ".join(reasons))


# Texts


def split(sql: str) -> Iterator[Item]:
    """The parts between the commas of the outermost parentheses."""
    depth, item, keywords = 0, list[re.Match[str]](), set[str]()
    for token in _TOKEN.finditer(sql):
        if token.lastgroup == "skip":
            continue
        depth -= token[0] == ")"
        if depth >= 1 and not (depth == 1 and token[0] == ","):
            item.append(token)
            keywords |= {token[0].upper()} if depth == 1 and token.lastgroup == "word" else set()
        elif item:
            first = item[0]
            constraint = first.lastgroup == "word" and first[0].upper() in _CONSTRAINTS
            yield Item(
                "" if constraint else _plain(first),
                sql[first.start() : item[-1].end()],
                frozenset(keywords),
                frozenset(_plain(one).lower() for one in item if one.lastgroup in ("word", "quoted", "text")),
                tuple(_plain(one) for one in item if one.lastgroup == "text"),
            )
            item, keywords = [], set()
        depth += token[0] == "("


def _plain(token: re.Match[str]) -> str:
    """What it names as an identifier, or says as a text."""
    text = token[0]
    if token.lastgroup == "word":
        return text
    close = "]" if text[0] == "[" else text[0]
    return text[1:-1].replace(close * 2, close)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
