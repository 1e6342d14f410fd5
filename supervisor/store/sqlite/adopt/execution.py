"""Takes over an application's table, in place, in one transaction, after a backup; or tries that on a copy."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from supervisor.domain.errors import InvalidOption, StoreError
from supervisor.domain.job import Claim, NewJob, Status
from supervisor.domain.settlement import done
from supervisor.store.migrate import shipped
from supervisor.store.sqlite import schema
from supervisor.store.sqlite.adopt.definition import literal, parameters, quoted
from supervisor.store.sqlite.adopt.plan import Plan, propose
from supervisor.store.sqlite.adopt.statements import given_up, statements
from supervisor.store.sqlite.adopt.table import SQL, TABLE, refusal
from supervisor.store.sqlite.claims import Outcomes
from supervisor.store.sqlite.connection import QUERIES, Connection
from supervisor.store.sqlite.driver_errors import is_general, translated
from supervisor.store.sqlite.inserting import insert_job
from supervisor.store.sqlite.place import Place
from supervisor.store.values import AdoptedColumn, AdoptOptions, AdoptReport, NeedsChange


def adopt(place: Place, options: AdoptOptions, *, keep_copy: bool = True) -> AdoptReport:
    """Take over the table. Raises InvalidOption, StoreError or NothingToAdopt, with nothing changed."""
    _look_first(place, options)
    reader = Connection(place, synchronous="NORMAL")
    connection = Connection(place, synchronous="FULL", checkpoints=True)
    backup = None
    try:
        # Rebuilding a table that others refer to: https://sqlite.org/lang_altertable.html#otheralter
        connection.raw.execute("PRAGMA foreign_keys = OFF")
        with connection.write() as raw:
            if keep_copy:  # inside the transaction, so that the copy holds exactly what is adopted
                backup = place.unused("before-adopt")
                schema.back_up(reader, backup)
            return _Adoption(raw).run(options, backup)
    except (StoreError, InvalidOption):
        if backup is not None and _is_unchanged(reader):
            backup.unlink(missing_ok=True)
        raise
    finally:
        reader.close()
        connection.close()


def _is_unchanged(reader: Connection) -> bool:
    """Whether the table is still the application's; an error may also come from a commit that has succeeded."""
    try:
        return not any(name == "job_meta" for _, name, *_ in reader.rows(SQL.objects))
    except StoreError:
        return False  # nobody knows


def rehearse(place: Place, options: AdoptOptions) -> AdoptReport:
    """What `adopt` would do, found out on a copy in a temporary folder. Raises the same."""
    _look_first(place, options)
    with tempfile.TemporaryDirectory(prefix="supervisor-adopt-") as folder:
        copy = Path(folder) / place.database.name
        try:
            with _reading(place) as raw, closing(sqlite3.connect(copy)) as target:
                raw.backup(target)
        except sqlite3.Error as error:
            free = shutil.disk_usage(folder).free
            raise StoreError(f"{folder}: no copy could be made for the plan: {error} ({free} bytes free)") from None
        return adopt(Place(copy), options, keep_copy=False)


def _look_first(place: Place, options: AdoptOptions) -> None:
    """Refuse what cannot be adopted before the file is touched."""
    if sqlite3.sqlite_version_info < schema.MINIMUM_SQLITE:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old; at least 3.37 is needed")
    if not place.database.exists():
        raise StoreError(f"{place.database}: there is no such database")
    try:
        with _reading(place) as raw:
            propose(raw, options, options.table)
    except sqlite3.Error as error:
        raise translated(error, place.database) from None


@contextmanager
def _reading(place: Place) -> Iterator[sqlite3.Connection]:
    """A connection that leaves the file as it is: ours would switch it to WAL."""
    with closing(sqlite3.connect(f"{place.database.as_uri()}?mode=rw", uri=True, isolation_level=None)) as raw:
        raw.text_factory = lambda data: data.decode("utf-8", "backslashreplace")
        raw.execute("PRAGMA query_only = ON")
        yield raw


class _Adoption(NamedTuple):
    """Inside the transaction."""

    raw: sqlite3.Connection

    def run(self, options: AdoptOptions, backup: Path | None) -> AdoptReport:
        if options.table.lower() != TABLE:
            self._step(SQL.rename_table.format(table=quoted(options.table)))
        plan = propose(self.raw, options, TABLE)
        try:
            for statement in statements(plan):
                self._step(statement)
            schema.stamp(self.raw, shipped("supervisor.store.sqlite"))
        except sqlite3.Error as error:
            if not (isinstance(error, sqlite3.IntegrityError) or is_general(error)):
                raise  # of the environment, not of the table
            raise refusal([str(error)]) from None
        notes = list(_notes(plan))
        problem = self._refused(lambda: insert_job(self.raw.cursor(), NewJob("adopted", "{}"), time.time()))
        if problem:
            notes.append(f"an enqueue that sets our columns alone is refused: {problem}")
        if plan.rows and (problem := self._refused(self._work)):
            raise StoreError(f"the jobs table cannot be adopted: it refuses to have jobs settled: {problem}")
        return AdoptReport(
            rows=plan.rows,
            recovered=plan.counts[Status.RUNNING],
            finished=sum(plan.counts[status] for status in Status if status.finished),
            backup=backup,
            extra_columns=tuple(part.name for part in plan.parts if part.ours is None),
            notes=tuple(notes),
            needing_change=tuple(
                NeedsChange(sql, problem)
                for sql in options.statements
                if (problem := self._refused(self._compile, sql))
            ),
            columns=tuple(
                AdoptedColumn(part.old, part.name, part.meaning or None, part.proposed) for part in plan.parts
            ),
            statuses=plan.statuses,
            types=options.types,
            job_types=plan.job_types,
            view=plan.view or None,
        )

    def _step(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        """One statement. Each is a fail-point, `adopt`: tests kill the process, or make it fail, at each."""
        reach = getattr(self.raw, "reach", lambda _: None)  # only the connections that tests ask for have fail-points
        reach("adopt.before")
        cursor = self.raw.execute(sql, parameters)
        reach("adopt")
        return cursor

    # Trials: nothing of them stays

    def _refused(self, work: Callable[..., object], *arguments: object) -> str | None:
        """Why the table refuses something, or None."""
        problem = None
        self._step("SAVEPOINT trial")
        try:
            work(*arguments)
        except sqlite3.Error as error:
            if not (isinstance(error, (sqlite3.IntegrityError, sqlite3.ProgrammingError)) or is_general(error)):
                raise
            problem = str(error)
        self._step("ROLLBACK TO trial")
        self._step("RELEASE trial")
        return problem

    def _work(self) -> None:
        """A claim and a settlement of ours."""
        now = time.time()
        type_, requires, priority = self._step(SQL.make_pending).fetchall()[0]
        group = {"type": type_, "requires": requires, "priority": priority, "want": 1}
        row = self._step(QUERIES.claim_group, group | {"owner": "adopt", "now": now, "expires_at": now}).fetchone()
        Outcomes("adopt", [done(Claim._make(row), "{}")], now).write(self.raw, now)

    def _compile(self, sql: str) -> None:
        """A statement of the application's."""
        names = parameters(sql)
        self._step(f"EXPLAIN {sql}", dict.fromkeys(names) if all(names) else [None] * len(names))


def _notes(plan: Plan) -> Iterator[str]:
    """What people are told beside the columns and words."""
    yield from given_up(plan)
    yield from _notes_on_words(plan)
    if not plan.key.shared and not plan.integer_ids:
        yield f"`id` is a number now; the application's ids are in `{plan.key.name}`"
    if plan.part("priority") is not None:
        yield "the job with the highest `priority` runs first"
    if plan.view:
        yield (
            f"`{plan.view}` shows the table as it was and takes INSERT, UPDATE and DELETE; through it SQLite counts no "
            "changed rows, and RETURNING is incomplete, so it is not for claims"
        )
    for table, column, on_delete in plan.table.pointing:
        if on_delete in ("NO ACTION", "RESTRICT"):
            yield f"a finished job that {table}.{column} points at stays until that row is gone"


def _notes_on_words(plan: Plan) -> Iterator[str]:
    for status in dict.fromkeys(plan.statuses.values()):
        words = [literal(word) for word, meaning in plan.statuses.items() if meaning == status]
        if len(words) > 1:
            yield f"{', '.join(words)} become '{status}' alike; the copy of the database keeps the difference"
    for word, status in plan.foreign["status"].items():
        yield f"a query for status '{word}' finds nothing in `{TABLE}`: '{status}' is stored"
        for kind, name, sql in plan.table.reading:
            if literal(word) in sql:
                yield f"the {kind} `{name}` names '{word}', which job-supervisor does not write; look through it"
