"""Checks before a hand-made `jobs` table is taken over, and of what still works afterwards."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from supervisor.domain.errors import StoreError
from supervisor.store.base import NeedsChange
from supervisor.store.migrate import shipped, statements
from supervisor.store.queries import Queries, load
from supervisor.store.sqlite.connection import QUERIES
from supervisor.store.sqlite.definition import Clause, Column, Definition, names, parse, quoted, tokens

SQL: Queries = load("supervisor.store.sqlite", "adopt.sql")

# What only our claims may write. To the triggers that protect claims, a program that uses one of these for its own
# purposes would look like one of our workers.
_CLAIM = ("locked_by", "locked_at", "lock_expires_at", "claim_token")
COUNTERS = ("attempts", "crashes", "claim_token")  # clamped when they are copied
_MADE_HERE = ("jobs_before_adopt", "jobs_times_insert", "jobs_times_update")
_DENIED = (
    sqlite3.SQLITE_TRANSACTION,
    sqlite3.SQLITE_SAVEPOINT,
    sqlite3.SQLITE_ATTACH,
    sqlite3.SQLITE_DETACH,
    sqlite3.SQLITE_PRAGMA,
)


class Old(NamedTuple):
    """The table as the application created it."""

    name: str
    definition: Definition
    strict: bool
    indexes: tuple[str, ...]
    triggers: tuple[str, ...]
    views: tuple[str, ...]
    pointing: tuple[tuple[str, str, str], ...]  # (table, column, ON DELETE) of other tables' foreign keys

    @property
    def table(self) -> str:
        return quoted(self.name)


def our_definition() -> Definition:
    """Our own table, as our migrations create it."""
    with closing(_model()) as model:
        [(sql,)] = model.execute(QUERIES.definition, {"table": "jobs"}).fetchall()
    return parse(sql)


def _model() -> sqlite3.Connection:
    """An empty database with our schema."""
    model = sqlite3.connect(":memory:", isolation_level=None)
    for migration in shipped("supervisor.store.sqlite"):
        for statement in statements(migration.sql):
            model.execute(statement)
    return model


def look(raw: sqlite3.Connection, ours: Definition, payload: str | None) -> Old:
    """Read the table. Raises StoreError with all reasons why it cannot be taken over."""
    objects = raw.execute(SQL.objects).fetchall()
    if any(name.lower() == "job_meta" for _, name, _, _ in objects):
        raise StoreError("the jobs table is job-supervisor's already; there is nothing to adopt")
    row = raw.execute(SQL.kind).fetchone()
    if row is None:
        raise StoreError("there is no table `jobs` to adopt; `supervisor migrate` makes one")
    kind, without_rowid, strict = row
    if kind != "table" or without_rowid:
        raise StoreError("`jobs` is no ordinary table (a view, a virtual table, or WITHOUT ROWID)")
    name, sql = next((o[1], o[3]) for o in objects if o[0] == "table" and o[1].lower() == "jobs")

    def of(kind: str) -> Iterator[tuple[str, str]]:
        return ((o[1], o[3]) for o in objects if o[0] == kind and o[2].lower() == "jobs" and o[3])

    old = Old(
        name,
        parse(sql),
        bool(strict),
        tuple(sql for _, sql in of("index")),
        tuple(sql for _, sql in of("trigger")),
        tuple(o[1] for o in objects if o[0] == "view"),
        tuple(raw.execute(SQL.pointing_here).fetchall()),
    )
    reasons = list(_shape(raw, old, payload)) + list(_clashes(objects)) or [
        *_values(raw, old, ours),
        *_beyond(raw, old, ours),
    ]
    if reasons:
        raise StoreError("the jobs table cannot be adopted as it is: " + "; ".join(reasons))
    return old


def _shape(raw: sqlite3.Connection, old: Old, payload: str | None) -> Iterator[str]:
    columns = raw.execute(SQL.columns, {"table": old.name}).fetchall()
    if [c[0] for c in columns] != [c.name for c in old.definition.columns]:
        yield "its definition cannot be read"
        return
    keys = [(name.lower(), declared.upper()) for name, declared, key, _ in columns if key]
    has_index = raw.execute(SQL.inner_indexes, {"table": old.name}).fetchone()[0]
    if keys != [("id", "INTEGER")] or has_index:
        yield "it needs a column `id INTEGER PRIMARY KEY`, and no other key"
    wanted = ["type", "status", payload or "payload"]
    missing = [name for name in wanted if old.definition.column(name) is None]
    if missing:
        yield "it has no column " + ", ".join(f"`{name}`" for name in missing)
    if "payload" in missing and payload is None:
        yield "if the payload stands in a column of another name, name it with --payload-column"
    if payload and payload.lower() != "payload" and old.definition.column("payload") is not None:
        yield f"it has a column `payload` beside `{payload}`"
    for name in _CLAIM:
        if old.definition.column(name) is not None:
            yield f"its column `{name}` would be taken for a claim of job-supervisor's; rename it first"
    generated = {name.lower() for name, _, _, hidden in columns if hidden}
    for name in sorted(generated & {c.name for c in our_definition().columns}):
        yield f"its column `{name}` is generated"


def _clashes(objects: Sequence[tuple[str, str, str, str]]) -> Iterator[str]:
    with closing(_model()) as model:
        ours = {row[1] for row in model.execute(SQL.objects)}
    ours = {name for name in ours if not name.startswith("sqlite_")} - {"jobs"} | set(_MADE_HERE)
    for kind, name, _, _ in objects:
        if name.lower() in ours:
            yield f"the name of its {kind} `{name}` is needed by job-supervisor; rename it first"


def _values(raw: sqlite3.Connection, old: Old, ours: Definition) -> Iterator[str]:
    """Values that our rows must not have. NULL stands for the default if there is one."""
    for column in old.definition.columns:
        model = ours.column(column.name)
        if model is None:
            continue
        check = model.clause("CHECK")
        if is_time(model):
            value = SQL.as_time.format(column=quoted(column.name))
            query = SQL.no_times.format(column=quoted(column.name), table=old.table, value=value)
        elif check is not None and model.name in ("type", "status", "priority"):
            query = SQL.offending.format(
                column=quoted(column.name),
                table=old.table,
                optional=int(model.name == "priority"),
                type=model.affinity.lower(),
                check=check.value,
            )
        else:
            continue
        rows = raw.execute(query).fetchall()
        if rows:
            listed = ", ".join(f"{_short(value)} ({_rows(count)})" for value, count in rows)
            yield f"`{column.name}` holds what job-supervisor cannot take: {listed}"


def _beyond(raw: sqlite3.Connection, old: Old, ours: Definition) -> Iterator[str]:
    """Rows that our CHECKs would refuse."""
    for check in fences(ours):
        column = next((model for model in ours.columns if model.name in names(check.value)), None)
        if column is None or column.name in COUNTERS or old.definition.column(column.name) is None:
            continue
        [(rows,)] = raw.execute(SQL.beyond.format(table=old.table, check=check.value)).fetchall()
        if rows:
            yield f"`{column.name}` holds what no job can have ({_rows(rows)}): {' '.join(check.text.split())}"


def fences(ours: Definition) -> list[Clause]:
    """The CHECKs of the column `type` that restrict other columns."""
    type_ = ours.column("type")
    assert type_ is not None
    return [clause for clause in type_.clauses if clause.kind == "CHECK"][1:]


def is_time(model: Column) -> bool:
    """Whether one of our columns holds a time that decides something."""
    return model.name.endswith("_at") and model.declared == "REAL"


def _rows(count: int) -> str:
    return f"{count} row" if count == 1 else f"{count} rows"


def _short(value: object) -> str:
    text = "NULL" if value is None else repr(value)
    return text if len(text) <= 40 else text[:37] + "…"


class Samples(NamedTuple):
    """What the application had stored before anything was changed."""

    values: tuple[tuple[str, Any], ...]  # (column, one value of each storage class)
    row: dict[str, Any] | None

    @classmethod
    def take(cls, raw: sqlite3.Connection, old: Old, ours: Definition) -> Samples:
        values = [
            (column.name, row[0])
            for column in old.definition.columns
            if ours.column(column.name) is not None and column.name.lower() not in ("id", "type", "status")
            for row in raw.execute(SQL.samples.format(column=quoted(column.name), table=old.table))
        ]
        plain = [
            name for name, _, key, hidden in raw.execute(SQL.columns, {"table": old.name}) if not key and not hidden
        ]
        columns = ", ".join(map(quoted, plain))
        row = raw.execute(SQL.latest_row.format(columns=columns, table=old.table)).fetchone()
        return cls(tuple(values), dict(zip(plain, row, strict=True)) if row else None)


class Trial:
    """Runs statements on the adopted table inside a savepoint, which is rolled back."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._raw = raw
        self.failing: list[NeedsChange] = []

    def built_in(self, old: Old, samples: Samples, payload: str) -> None:
        """Statements that an application with such a table typically runs, one after the other."""
        has = {column.name.lower() for column in old.definition.columns}
        touch = SQL.touch if "updated_at" in has else ""
        attempts = SQL.count_attempt if "attempts" in has else ""
        error = SQL.write_error if "last_error" in has else ""
        # In double quotes an unknown name would be taken as a string.
        named = f"`{payload.replace('`', '``')}`"
        self._raw.execute("SAVEPOINT trial")
        if samples.row is None:
            self._run(SQL.try_insert.format(payload=named))
        else:
            self._run(SQL.try_delete_row)
            row = {payload if name.lower() == "payload" else name: v for name, v in samples.row.items()}
            columns, marks = ", ".join(map(quoted, row)), ", ".join("?" * len(row))
            self._run(SQL.try_insert_like.format(columns=columns, marks=marks), list(row.values()))
        self._run(SQL.try_claim.format(touch=attempts + touch))
        self._run(SQL.try_done.format(touch=touch))
        self._run(SQL.try_reset)
        self._run(SQL.try_failed.format(attempts=attempts, error=error, touch=touch))
        self._run(SQL.try_select.format(payload=named))
        for column, value in samples.values:
            template = SQL.try_value.format(column=quoted(column))
            self._run(template, {"value": value}, shown=template.replace(":value", _short(value)))
        for view in old.views:
            self._run(SQL.try_view.format(view=quoted(view)))
        self._run(SQL.try_delete)
        self._undo()

    def given(self, sqls: Sequence[str]) -> None:
        """The caller's statements. One with parameters is only compiled: its values are unknown."""
        for sql in sqls:
            self._raw.execute("SAVEPOINT trial")
            marks = [token.text for token in tokens(sql) if token.kind == "parameter"]
            if not marks:
                self._run(sql)
            elif all(mark == "?" for mark in marks):
                self._run(f"EXPLAIN {sql}", [None] * len(marks), shown=sql)
            else:
                self._run(f"EXPLAIN {sql}", {mark[1:]: None for mark in marks}, shown=sql)
            self._undo()

    def refuses(self, work: Callable[[], object]) -> str | None:
        """Why the table refuses one of our statements, or None."""
        self._raw.execute("SAVEPOINT trial")
        problem = None
        try:
            work()
        except sqlite3.Error as error:
            problem = str(error)
        self._undo()
        return problem

    def _run(self, sql: str, parameters: Any = (), *, shown: str | None = None) -> None:
        self._raw.set_authorizer(lambda action, *_: _allowed(action))
        try:
            self._raw.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            self.failing.append(NeedsChange(" ".join((shown or sql).split()), str(error)))
        finally:
            self._raw.set_authorizer(None)
        if not self._raw.in_transaction:
            raise StoreError(f"a constraint of the table rolls whole transactions back: {shown or sql}")

    def _undo(self) -> None:
        self._raw.execute("ROLLBACK TO trial")
        self._raw.execute("RELEASE trial")


def _allowed(action: int) -> int:
    return sqlite3.SQLITE_DENY if action in _DENIED else sqlite3.SQLITE_OK
