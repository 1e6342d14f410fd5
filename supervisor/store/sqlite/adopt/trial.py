"""Which of the application's statements go on: each is run on the new table, in a savepoint that is rolled back."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from supervisor.domain.errors import StoreError
from supervisor.domain.job import Status
from supervisor.store.sqlite.adopt.plan import Plan, literal, short
from supervisor.store.sqlite.adopt.shape import SQL, TABLE
from supervisor.store.sqlite.definition import Token, names, quoted, tokens
from supervisor.store.values import NeedsChange

Answer = TypeVar("Answer")

_DENIED = (
    sqlite3.SQLITE_TRANSACTION,
    sqlite3.SQLITE_SAVEPOINT,
    sqlite3.SQLITE_ATTACH,
    sqlite3.SQLITE_DETACH,
    sqlite3.SQLITE_PRAGMA,
)
_LATER = ("completed_at", "started_at", "last_error", "result")  # no INSERT of a new job names these
_SECTIONS = frozenset(("INTO", "SELECT", "FROM", "WHERE", "SET", "VALUES", "HAVING", "ON", "RETURNING", "ORDER"))


class Steps:
    """Runs the statements. Each is a fail-point, `adopt`: tests kill the process, or make it fail, at each."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self.raw = raw
        # Only the connections that tests ask for have fail-points.
        self._pass: Callable[[str], None] = getattr(raw, "reach", lambda _: None)

    def run(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        return self.reach(lambda: self.raw.execute(sql, parameters))

    def reach(self, work: Callable[[], Answer]) -> Answer:
        """Something that consists of one statement."""
        self._pass("adopt.before")
        answer = work()
        self._pass("adopt")
        return answer


class Samples(NamedTuple):
    """What the application had stored before anything was changed."""

    values: tuple[tuple[str, Any], ...]  # (old column, one value of each storage class)
    row: dict[str, Any] | None  # what the latest INSERT probably said

    @classmethod
    def take(cls, steps: Steps, plan: Plan) -> Samples:
        parts = [part for part in plan.parts if part.old.lower() not in plan.old.generated]
        values = [
            (part.old, row[0])
            for part in parts
            if part.ours not in (None, "id", "type", "status")
            for row in steps.run(SQL.samples.format(column=quoted(part.old), table=plan.old.table)).fetchall()
        ]
        columns = ", ".join(quoted(part.old) for part in parts)
        found = steps.run(SQL.latest_row.format(columns=columns, table=plan.old.table)).fetchone()
        if found is None:
            return cls(tuple(values), None)
        row = {}
        for part, value in zip(parts, found, strict=True):
            moved = part.ours is None and part.name != part.old
            if value is None or moved or part.ours in _LATER:
                continue
            if part.ours == "id":
                if plan.integer_ids:
                    continue
                value = "a trial of supervisor adopt"
            row[part.old] = plan.word_of(Status.PENDING) if part.ours == "status" else value
        return cls(tuple(values), row)


class Trial:
    """`failing` are the statements that need a change, `passing` those that go on as they are."""

    def __init__(self, steps: Steps, plan: Plan) -> None:
        self._steps = steps
        self._plan = plan
        self._apart = plan.old.name.lower() != TABLE  # the view has the table's name
        self.failing: list[NeedsChange] = []
        self.passing: list[str] = []

    def built_in(self, samples: Samples) -> None:
        """Statements that an application with such a table typically runs, one after the other."""
        plan = self._plan
        words = self._vocabulary()
        self._steps.run("SAVEPOINT trial")
        if samples.row is None:
            self._check(SQL.try_insert.format(**words))
        else:
            if plan.integer_ids:
                self._steps.run(SQL.try_delete_row)  # its values may have to be unique
            columns, marks = ", ".join(map(quoted, samples.row)), ", ".join("?" * len(samples.row))
            sql = SQL.try_insert_like.format(columns=columns, marks=marks, **words)
            self._check(sql, list(samples.row.values()))
        counted = self._also(SQL.count_attempt, "attempts")
        touched = self._also(SQL.touch, "updated_at")
        self._check(SQL.try_claim.format(touch=counted + touched, **words))
        self._check(SQL.try_done.format(touch=touched, **words))
        self._check(SQL.try_reset.format(**words))
        wrong = self._also(SQL.write_error, "last_error")
        self._check(SQL.try_failed.format(touch=counted + wrong + touched, **words))
        self._check(SQL.try_select.format(**words))
        for column, value in samples.values if plan.key.shared else ():
            template = SQL.try_value.format(column=quoted(column), **words)
            self._check(template, {"value": value}, shown=template.replace(":value", short(value)))
        for view, _ in plan.old.views:
            self._check(SQL.try_view.format(view=quoted(view)))
        self._check(SQL.try_delete.format(**words))
        self._undo()

    def given(self, sqls: Sequence[str]) -> None:
        """The caller's statements. One with parameters is only compiled: its values are unknown."""
        for sql in sqls:
            self._steps.run("SAVEPOINT trial")
            marks = [token.text for token in tokens(sql) if token.kind == "parameter"]
            if not marks:
                self._check(sql)
            elif all(mark == "?" for mark in marks):
                self._check(f"EXPLAIN {sql}", [None] * len(marks), shown=sql)
            else:
                self._check(f"EXPLAIN {sql}", {mark[1:]: None for mark in marks}, shown=sql)
            self._undo()

    def refuses(self, work: Callable[[], object]) -> str | None:
        """Why the table refuses one of our statements, or None."""
        self._steps.run("SAVEPOINT trial")
        problem = None
        try:
            work()
        except sqlite3.IntegrityError as error:
            problem = str(error)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise  # of the environment, not of the table
            problem = str(error)
        self._undo()
        return problem

    # One statement

    def _vocabulary(self) -> dict[str, str]:
        plan = self._plan
        column = {part.ours: _named(part.old) for part in plan.parts if part.ours}
        table = plan.view if self._apart else TABLE
        key = column["id"]
        status = {each.value: literal(plan.word_of(each)) for each in Status}
        return {
            **status,
            "table": _plain(table),
            "key": key,
            "type": column["type"],
            "payload": column["payload"],
            "status": column["status"],
            "latest": SQL.latest.format(key=key, table=_plain(table)),
        }

    def _also(self, template: str, ours: str) -> str:
        part = self._plan.part(ours)
        return "" if part is None else template.format(column=_plain(part.old))

    def _check(self, sql: str, parameters: Any = (), *, shown: str | None = None) -> None:
        """Run it as it is; if it fails, or would silently mean something else, with the view instead of the table."""
        text = " ".join((shown or sql).split())
        if self._apart:
            reason = self._error(sql, parameters) or self._blind(sql)
            change = None if reason is None else NeedsChange(text, reason)
        else:
            reason = next(self._silent(sql), None) or self._error(sql, parameters)
            view = self._plan.view
            goes_on = bool(reason and view) and not self._blind(sql) and self._names_table(sql)
            if goes_on and self._error(_replaced(sql, view), parameters) is not None:
                goes_on = False
            change = None if reason is None else NeedsChange(text, reason, view if goes_on else None)
        if change is None:
            self.passing.append(text)
        else:
            self.failing.append(change)

    def _error(self, sql: str, parameters: Any) -> str | None:
        raw = self._steps.raw
        raw.set_authorizer(lambda action, *_: sqlite3.SQLITE_DENY if action in _DENIED else sqlite3.SQLITE_OK)
        try:
            self._steps.run(sql, parameters).fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise  # of the environment, not of the statement
            return str(error)
        except sqlite3.Error as error:
            return str(error)
        finally:
            raw.set_authorizer(None)
        if not raw.in_transaction:
            raise StoreError(f"a constraint of the table rolls whole transactions back: {sql}")
        return None

    def _undo(self) -> None:
        self._steps.run("ROLLBACK TO trial")
        self._steps.run("RELEASE trial")

    def _names_table(self, sql: str) -> bool:
        return TABLE in names(sql)

    def _blind(self, sql: str) -> str | None:
        """Why a view cannot take a statement, although it compiles."""
        words = {token.word for token in tokens(sql)}
        if "RETURNING" in words:
            return f"RETURNING is incomplete through a view; write `{TABLE}`, or leave the claims to job-supervisor"
        return None

    def _silent(self, sql: str) -> Iterator[str]:
        """What a statement on `jobs` would silently get wrong."""
        plan, named = self._plan, names(sql)
        if TABLE not in named:
            return
        read = list(_read(sql))
        compared = {token.name.lower() for token in read}
        for part in plan.parts:
            if part.name == part.old or part.old.lower() not in named:
                continue
            if part.ours == "id":
                yield f"`{part.old}` is a number now; the application's ids are in `{part.name}`"
            elif part.ours != part.old.lower():
                yield f"`{part.old}` is job-supervisor's own now; the application's is `{part.name}`"
            elif part.old.lower() in compared:  # what is written there has to be a number, or is refused
                yield f"`{part.old}` holds Unix seconds now; the application's times are in `{part.name}`"
        for word in (token.name for token in read if token.text[0] == "'"):
            if word in plan.words.foreign_statuses:
                yield f"'{word}' is stored as '{plan.words.foreign_statuses[word]}'"
            elif word in plan.words.foreign_types:
                yield f"'{word}' is stored as '{plan.words.foreign_types[word]}'"


def _read(sql: str) -> Iterator[Token]:
    """What a statement compares with or selects, not what it writes."""
    section = ""
    for token in tokens(sql):
        section = token.word if token.word in _SECTIONS else section
        if section not in ("INTO", "SET", "VALUES", ""):
            yield token


def _replaced(sql: str, view: str) -> str:
    """The statement with the view's name for the table's."""
    parts, at = [], 0
    for token in tokens(sql):
        if token.kind in ("word", "quoted") and token.text[0] != "'" and token.name.lower() == TABLE:
            parts += [sql[at : token.start], quoted(view)]
            at = token.end
    return "".join([*parts, sql[at:]])


def _plain(name: str) -> str:
    """Quoted only if necessary: for people."""
    return name if name.isidentifier() else quoted(name)


def _named(name: str) -> str:
    """In double quotes an unknown name would be taken as a string."""
    return name if name.isidentifier() else f"`{name.replace('`', '``')}`"
