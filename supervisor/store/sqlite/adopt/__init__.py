"""Takes over an application's table, in place, in one transaction, after a backup; or tries that on a copy."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from supervisor.domain.errors import InvalidOption, StoreError
from supervisor.domain.job import Status
from supervisor.store.base import AdoptedColumn, AdoptOptions, AdoptReport
from supervisor.store.migrate import shipped
from supervisor.store.sql.connection import literal
from supervisor.store.sqlite import schema
from supervisor.store.sqlite.adopt.plan import Plan, propose
from supervisor.store.sqlite.adopt.statements import must_go, statements_for
from supervisor.store.sqlite.adopt.table import SQL, TABLE, quoted, refusal
from supervisor.store.sqlite.connection import Connection, compile_changes
from supervisor.store.sqlite.driver_errors import is_general, translated
from supervisor.store.sqlite.files import DatabaseFiles, uri


def adopt(files: DatabaseFiles, options: AdoptOptions, *, keep_copy: bool = True) -> AdoptReport:
    """Take over the table. Raises InvalidOption, StoreError or NothingToAdopt, with nothing changed."""
    _look_first(files, options)
    reader = Connection(files, synchronous="NORMAL")
    connection = Connection(files, synchronous="FULL", checkpoints=True)
    backup = None
    try:
        # Rebuilding a table that others refer to: https://sqlite.org/lang_altertable.html#otheralter
        connection.raw.execute("PRAGMA foreign_keys = OFF")
        with connection.write() as raw:
            if keep_copy:  # inside the transaction, so that the copy holds exactly what is adopted
                backup = files.unused("before-adopt")
                schema.back_up(reader, backup)
            return _carried_out(raw, options, backup)
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


def rehearse(files: DatabaseFiles, options: AdoptOptions) -> AdoptReport:
    """What `adopt` would do, found out on a copy in a temporary folder. Raises the same."""
    _look_first(files, options)
    with tempfile.TemporaryDirectory(prefix="supervisor-adopt-") as folder:
        copy = Path(folder) / files.database.name
        try:
            with _reading(files) as raw, closing(sqlite3.connect(copy)) as target:
                raw.backup(target)
        except sqlite3.Error as error:
            free = shutil.disk_usage(folder).free
            raise StoreError(f"{folder}: no copy could be made for the plan: {error} ({free} bytes free)") from None
        return adopt(DatabaseFiles(copy), options, keep_copy=False)


def _look_first(files: DatabaseFiles, options: AdoptOptions) -> None:
    """Refuse what cannot be adopted before the file is touched."""
    if sqlite3.sqlite_version_info < schema.MINIMUM_SQLITE:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old; at least 3.37 is needed")
    if not files.database.exists():
        raise files.missing()
    try:
        with _reading(files) as raw:
            propose(raw, options, options.table)
    except sqlite3.Error as error:
        raise translated(error, files.database) from None


@contextmanager
def _reading(files: DatabaseFiles) -> Iterator[sqlite3.Connection]:
    """A connection that leaves the file as it is: ours would switch it to WAL."""
    with closing(sqlite3.connect(uri(files.database, "rw"), uri=True, isolation_level=None)) as raw:
        raw.text_factory = lambda data: data.decode("utf-8", "backslashreplace")
        raw.execute("PRAGMA query_only = ON")
        yield raw


def _carried_out(raw: sqlite3.Connection, options: AdoptOptions, backup: Path | None) -> AdoptReport:
    """Inside the transaction."""
    if options.table.lower() != TABLE:
        _step(raw, SQL.rename_table.format(table=quoted(options.table)))
    plan = propose(raw, options, TABLE)
    try:
        for statement in statements_for(plan):
            _step(raw, statement)
        schema.stamp(raw, shipped("supervisor.store.sqlite"))
        compile_changes(raw)  # triggers of the application's may need what our programs have not
    except sqlite3.Error as error:
        if not (isinstance(error, sqlite3.IntegrityError) or is_general(error)):  # of the environment
            raise
        raise refusal([str(error)]) from None
    return AdoptReport(
        rows=plan.counts.total(),
        recovered=plan.counts[Status.RUNNING],
        finished=sum(plan.counts[status] for status in Status if status.finished),
        backup=backup,
        extra_columns=tuple(part.name for part in plan.parts if part.ours is None),
        notes=tuple(_notes(plan)),
        columns=tuple(AdoptedColumn(part.old, part.name, part.meaning or None, part.proposed) for part in plan.parts),
        statuses=plan.statuses,
        job_types=plan.job_types,
        view=plan.view or None,
    )


def _step(raw: sqlite3.Connection, sql: str) -> None:
    """One statement. Each is a fail-point, `adopt`: tests kill the process, or make it fail, at each."""
    reach = getattr(raw, "reach", lambda _: None)  # only the connections that tests ask for have fail-points
    reach("adopt.before")
    raw.execute(sql)
    reach("adopt")


def _notes(plan: Plan) -> Iterator[str]:
    """What people should know beside the columns and the states."""
    yield from _lost(plan)
    yield from _words(plan)
    if plan.part("priority") is not None:
        yield "the job with the highest `priority` runs first"
    if plan.view:
        yield (
            f"`{plan.view}` shows the table as it was and takes INSERT, UPDATE and DELETE; through it SQLite counts no "
            "changed rows, and RETURNING is incomplete, so it is not for claims"
        )
    for part in plan.parts:
        if part.ours is None and part.column.not_null and part.column.default is None and not part.column.generated:
            yield f"`{part.name}` must have a value, so that `supervisor enqueue` is refused"
    for table, column, on_delete in plan.table.pointing:
        if on_delete in ("NO ACTION", "RESTRICT"):
            yield f"a finished job that {table}.{column} points at stays until that row is gone"


def _lost(plan: Plan) -> Iterator[str]:
    for item in plan.table.constraints:
        if "PRIMARY" not in item.keywords and must_go(plan, item):
            yield f"a constraint on columns of ours was left out: {item.text}"
    for part in plan.parts:
        lost = sorted(part.column.item.keywords & {"CHECK", "COLLATE", "REFERENCES"})
        if part.ours is not None and part.shared and part.column.not_null and not part.ours.not_null:
            lost.append("NOT NULL")
        if lost and (part.ours is not None or part.name != part.old):
            yield f"`{part.name}` gave up its {' and '.join(lost)}"


def _words(plan: Plan) -> Iterator[str]:
    for status in dict.fromkeys(plan.statuses.values()):
        words = [literal(word) for word, meaning in plan.statuses.items() if meaning == status]
        if len(words) > 1:
            yield f"{', '.join(words)} become '{status}' alike; the copy of the database keeps the difference"
    for word, status in plan.foreign.items():
        yield f"a query for status '{word}' finds nothing in `{TABLE}`: '{status}' is stored"
        for kind, name, sql in plan.table.reading:
            if literal(word) in sql:
                yield f"the {kind} `{name}` names '{word}', which job-supervisor does not write; look through it"
