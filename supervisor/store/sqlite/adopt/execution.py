"""Takes over an application's table, in place, in one transaction, after a backup; or tries that on a copy."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from supervisor.domain.errors import InvalidOption, StoreError
from supervisor.domain.job import Claim, NewJob
from supervisor.domain.settlement import Failure, RetryPolicy, done, failed
from supervisor.store.migrate import shipped, statements
from supervisor.store.sqlite import schema
from supervisor.store.sqlite.adopt.copying import values
from supervisor.store.sqlite.adopt.definitions import Definitions
from supervisor.store.sqlite.adopt.plan import notes, propose
from supervisor.store.sqlite.adopt.shape import SQL, TABLE, Old
from supervisor.store.sqlite.adopt.trial import Samples, Steps, Trial
from supervisor.store.sqlite.adopt.triggers import triggers, with_words
from supervisor.store.sqlite.adopt.view import view
from supervisor.store.sqlite.claims import Outcomes
from supervisor.store.sqlite.connection import QUERIES, Connection
from supervisor.store.sqlite.definition import quoted, table_created
from supervisor.store.sqlite.driver_errors import translated
from supervisor.store.sqlite.inserting import insert_job
from supervisor.store.sqlite.place import Place
from supervisor.store.values import AdoptOptions, AdoptReport


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
            return _Adoption(raw, options).run(backup)
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
            propose(raw, options)
    except sqlite3.Error as error:
        raise translated(error, place.database) from None


@contextmanager
def _reading(place: Place) -> Iterator[sqlite3.Connection]:
    """A connection that leaves the file as it is: ours would switch it to WAL."""
    with closing(sqlite3.connect(f"{place.database.as_uri()}?mode=rw", uri=True, isolation_level=None)) as raw:
        raw.text_factory = lambda data: data.decode("utf-8", "backslashreplace")
        raw.execute("PRAGMA query_only = ON")
        yield raw


class _Adoption:
    """Inside the transaction."""

    def __init__(self, raw: sqlite3.Connection, options: AdoptOptions) -> None:
        self._steps = Steps(raw)
        self._now = time.time()
        self._options = options
        self._plan = propose(raw, options)

    def run(self, backup: Path | None) -> AdoptReport:
        plan = self._plan
        samples = Samples.take(self._steps, plan)
        definitions = Definitions(plan)
        self._rebuild(list(definitions.lines()))
        trial = Trial(self._steps, plan)
        told = [*notes(plan), *definitions.notes, *self._try_ours(trial)]
        trial.built_in(samples)
        trial.given(self._options.statements)
        return AdoptReport(
            rows=plan.rows,
            recovered=plan.running,
            finished=plan.finished,
            backup=backup,
            extra_columns=tuple(part.name for part in plan.parts if part.ours is None),
            notes=tuple(told),
            needing_change=tuple(trial.failing),
            columns=tuple(plan.columns()),
            statuses=dict(plan.words.statuses),
            types=dict(plan.words.types),
            job_types=plan.types,
            view=plan.view or None,
            going_on=tuple(trial.passing),
        )

    # The table

    def _rebuild(self, definitions: list[str]) -> None:
        """Rename the old table, create and fill the new one, restore everything around it."""
        steps, plan = self._steps, self._plan
        old = plan.old
        if old.name.lower() != TABLE:
            steps.run(SQL.rename_table.format(table=old.table))
            old = self._renamed()
        has_sequences = any(name == "sqlite_sequence" for _, name, *_ in steps.run(SQL.objects))
        row = steps.run(SQL.sequence).fetchone() if has_sequences else None
        # References and views of other tables go by the name jobs.
        steps.run("PRAGMA legacy_alter_table = ON")
        steps.run(SQL.rename_old_table.format(table=quoted(TABLE)))
        steps.run(SQL.create.format(definitions=",\n  ".join(definitions)))
        filled = values(plan)
        columns = ", ".join(map(quoted, filled))
        steps.run(SQL.copy.format(columns=columns, values=", ".join(filled.values())), {"now": self._now})
        steps.run(SQL.drop)
        sequence = {"seq": row[0] if row else 0}
        steps.run(SQL.keep_sequence, sequence)
        steps.run(SQL.add_sequence, sequence)
        self._around(old)

    def _renamed(self) -> Old:
        """The texts of what belongs to the table, which name it differently now."""
        objects = self._steps.run(SQL.objects).fetchall()

        def of(kind: str) -> list[tuple[str, str]]:
            return [(o[1], o[3]) for o in objects if o[0] == kind and o[2].lower() == TABLE and o[3]]

        return self._plan.old._replace(indexes=tuple(sql for _, sql in of("index")), triggers=tuple(of("trigger")))

    def _around(self, old: Old) -> None:
        """Indexes, our other tables, our triggers, the application's triggers, the view."""
        steps, plan = self._steps, self._plan
        for statement in old.indexes:
            steps.run(statement)
        ours = shipped("supervisor.store.sqlite")
        for migration in ours:
            for statement in statements(migration.sql):
                if table_created(statement) != TABLE:
                    steps.reach(partial(schema.apply, steps.raw, with_words(plan, statement)))
        steps.reach(partial(schema.stamp, steps.raw, ours))
        for statement in (*triggers(plan), *view(plan)):
            steps.run(statement)
        for _, statement in old.triggers:
            steps.run(statement)

    # Our own statements

    def _try_ours(self, trial: Trial) -> Iterator[str]:
        """Notes. Raises StoreError if our workers could not work."""
        problem = trial.refuses(self._enqueue)
        if problem:
            yield f"an enqueue that sets our columns alone is refused: {problem}"
            if not self._plan.rows:
                return  # nothing to try it on
        problem = trial.refuses(self._work)
        if problem:
            raise StoreError(f"the jobs table cannot be adopted: it refuses to have jobs settled: {problem}")

    def _enqueue(self) -> None:
        self._steps.reach(lambda: insert_job(self._steps.raw.cursor(), NewJob("adopted", "{}"), self._now))

    def _work(self) -> None:
        """Claim, fail, claim again, succeed."""
        steps = self._steps
        if not self._plan.rows:
            self._enqueue()
        type_, requires, priority = steps.run(SQL.make_pending).fetchall()[0]
        group = {"type": type_, "requires": requires, "priority": priority, "want": 1}
        mark = {"owner": "adopt", "now": self._now, "expires_at": self._now}
        policy = RetryPolicy(max_attempts=10**9, base=0.0)
        for attempt in (1, 2):
            row = steps.run(QUERIES.claim_group, group | mark).fetchone()
            claim = Claim._make(row)._replace(attempt=attempt, max_attempts=None)
            failure = failed(claim, Failure("exception", "a trial"), policy, chance=0.5)
            outcomes = Outcomes("adopt", [failure if attempt == 1 else done(claim, "{}")], self._now)
            outcomes.write(steps.raw, self._now)
