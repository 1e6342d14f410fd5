"""An application's table as it stands in the database: its definition and everything around it."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from supervisor.domain.errors import NothingToAdopt, StoreError
from supervisor.store.migrate import shipped, statements
from supervisor.store.queries import Queries, load
from supervisor.store.sqlite.connection import QUERIES
from supervisor.store.sqlite.definition import Column, Definition, parse, quoted

SQL: Queries = load("supervisor.store.sqlite.adopt", "adopt.sql")

TABLE = "jobs"
# Our columns for limits and order among jobs, which an adopted table has none of: it may have its own of these names.
_WITHOUT = ("concurrency_key", "fair_key", "expires_at", "hold", "followed", "batch")
ASIDE = "jobs_before_adopt"
# What is created beside our own schema, if it is needed.
MADE_HERE = (
    ASIDE,
    *(f"jobs_{what}_{when}" for what in ("times", "kept", "words") for when in ("insert", "update")),
)


class Old(NamedTuple):
    """The table as the application created it."""

    name: str
    definition: Definition
    strict: bool
    key: str  # the column that is the primary key
    generated: frozenset[str]  # in lower case
    indexes: tuple[str, ...]
    triggers: tuple[tuple[str, str], ...]  # name and text
    views: tuple[tuple[str, str], ...]
    pointing: tuple[tuple[str, str, str], ...]  # (table, column, ON DELETE) of other tables' foreign keys
    taken: frozenset[str]  # the names of everything in the database, in lower case

    @property
    def table(self) -> str:
        return quoted(self.name)


@functools.cache
def our_definition() -> Definition:
    """Our own table, as an adopted one is to be."""
    with closing(_model()) as model:
        [(sql,)] = model.execute(QUERIES.definition, {"table": TABLE}).fetchall()
    whole = parse(sql)
    return whole._replace(columns=tuple(column for column in whole.columns if column.name not in _WITHOUT))


@functools.cache
def _our_names() -> frozenset[str]:
    """What our schema makes."""
    with closing(_model()) as model:
        return frozenset(row[1] for row in model.execute(SQL.objects) if not row[1].startswith("sqlite_"))


def _model() -> sqlite3.Connection:
    """An empty database with our schema."""
    model = sqlite3.connect(":memory:", isolation_level=None)
    for migration in shipped("supervisor.store.sqlite"):
        for statement in statements(migration.sql):
            model.execute(statement)
    return model


def is_time(model: Column) -> bool:
    """Whether one of our columns holds a time that decides something."""
    return model.name.endswith("_at") and model.declared == "REAL"


def read(raw: sqlite3.Connection, table: str, view: str = "") -> Old:
    """Read the table. Raises NothingToAdopt if it is ours, and StoreError if its shape cannot be taken over."""
    objects = raw.execute(SQL.objects).fetchall()
    if any(name.lower() == "job_meta" for _, name, _, _ in objects):
        raise NothingToAdopt("the jobs table is job-supervisor's already; there is nothing to adopt")
    row = raw.execute(SQL.kind, {"table": table}).fetchone()
    if row is None:
        hint = "`supervisor migrate` makes one" if table == TABLE else "--table names the application's table"
        raise StoreError(f"there is no table `{table}` to adopt; {hint}")
    kind, without_rowid, strict = row
    if kind != "table" or without_rowid:
        raise StoreError(f"`{table}` is no ordinary table (a view, a virtual table, or WITHOUT ROWID)")
    name, sql = next((o[1], o[3]) for o in objects if o[0] == "table" and o[1].lower() == table.lower())
    definition = parse(sql)
    columns = raw.execute(SQL.columns, {"table": name}).fetchall()
    keys = [column for column, _, key, _ in columns if key]
    reasons = list(_clashes(objects, name, view))
    if [column[0] for column in columns] != [column.name for column in definition.columns]:
        reasons.append("its definition cannot be read")
    elif len(keys) != 1:
        reasons.append("it needs a primary key of one column")
    if reasons:
        raise refusal(reasons)

    def of(kind: str) -> Iterator[tuple[str, str]]:
        return ((o[1], o[3]) for o in objects if o[0] == kind and o[2].lower() == name.lower() and o[3])

    return Old(
        name,
        definition,
        bool(strict),
        keys[0],
        frozenset(column.lower() for column, _, _, hidden in columns if hidden),
        tuple(sql for _, sql in of("index")),
        tuple(of("trigger")),
        tuple((o[1], o[3]) for o in objects if o[0] == "view"),
        tuple(raw.execute(SQL.pointing_here, {"table": name}).fetchall()),
        frozenset(o[1].lower() for o in objects),
    )


def refusal(reasons: list[str]) -> StoreError:
    return StoreError("the jobs table cannot be adopted as it is: " + "; ".join(reasons))


def _clashes(objects: list[tuple[str, str, str, str]], table: str, view: str) -> Iterator[str]:
    """Names that we need and that the application has given to something else."""
    ours = {*_our_names(), *MADE_HERE, view.lower()}
    for kind, name, _, _ in objects:
        if name.lower() in ours and name.lower() != table.lower():
            yield f"the name of its {kind} `{name}` is needed by job-supervisor; rename it first"
