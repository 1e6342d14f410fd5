"""Takes over a hand-made `jobs` table, in place, in one transaction, after a backup.

The table is rebuilt: the application's columns first and in their order, then ours. Its extra columns,
indexes, triggers, views and foreign keys stay. It cannot be STRICT, since extra columns may have any
declared type, so CHECKs hold what STRICT would.

created_at and updated_at keep the form in which the application writes them, so that its own comparisons
(`DELETE … WHERE updated_at < datetime('now', '-7 days')`) go on meaning what they meant: the old values
stay, and a trigger turns what we write into that form. Nothing of ours is decided by these columns; what
is decided by a time (completed_at, for retention) is converted from them.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from supervisor.domain.errors import StoreError
from supervisor.domain.job import Claim, NewJob
from supervisor.domain.retry import RetryPolicy
from supervisor.domain.settlement import Failure, done, failed
from supervisor.store.base import AdoptReport
from supervisor.store.migrate import shipped, statements
from supervisor.store.sqlite import schema
from supervisor.store.sqlite.adopt_checks import COUNTERS, SQL, Samples, Trial, is_time, look, our_definition
from supervisor.store.sqlite.connection import QUERIES, Connection
from supervisor.store.sqlite.definition import Column, names, quoted, table_created, tokens
from supervisor.store.sqlite.driver_errors import translated
from supervisor.store.sqlite.inserting import insert_job
from supervisor.store.sqlite.place import Place
from supervisor.store.sqlite.settling import Outcomes

# Bytes of any kind may stand here: a job whose payload is no JSON fails with a clear error, and nothing
# is decided by the others.
_FREE = ("payload", "last_error", "created_at", "updated_at")
_AS_WRITTEN = ("created_at", "updated_at")
_THEIRS = ("meta",)  # an application's column of this name stays as it is, and is shown
_ELSEWHERE = ("run_after", "run_at", "not_before", "available_at", "next_run_at", "next_attempt_at")
_TIME = re.compile(r"\d{4}-\d\d-\d\d([ T])\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?")


def adopt(place: Place, *, payload_column: str | None, tried: Sequence[str]) -> AdoptReport:
    """Take over the table. Raises StoreError, with nothing changed, if that cannot be done safely."""
    _look_first(place, payload_column)
    reader = Connection(place, synchronous="NORMAL")
    connection = Connection(place, synchronous="FULL", checkpoints=True)
    try:
        # Rebuilding a table that others refer to: https://sqlite.org/lang_altertable.html#otheralter
        connection.raw.execute("PRAGMA foreign_keys = OFF")
        with connection.write() as raw:
            # Inside the transaction, so that the copy holds exactly what is adopted.
            backup = place.unused("before-adopt")
            schema.back_up(reader, backup)
            try:
                return _Adoption(raw, payload_column).run(backup, tried)
            except (StoreError, sqlite3.Error):
                backup.unlink(missing_ok=True)  # nothing has been changed
                raise
    finally:
        reader.close()
        connection.close()


def _look_first(place: Place, payload_column: str | None) -> None:
    """Refuse what cannot be adopted before the file is touched."""
    if sqlite3.sqlite_version_info < schema.MINIMUM_SQLITE:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old; at least 3.37 is needed")
    if not place.database.exists():
        raise StoreError(f"{place.database}: there is no such database")
    try:
        raw = sqlite3.connect(f"{place.database.as_uri()}?mode=rw", uri=True, isolation_level=None)
        try:
            raw.text_factory = lambda data: data.decode("utf-8", "backslashreplace")
            look(raw, our_definition(), payload_column)
        finally:
            raw.close()
    except sqlite3.Error as error:
        raise translated(error, place.database) from None


class _Adoption:
    def __init__(self, raw: sqlite3.Connection, payload_column: str | None) -> None:
        self._raw = raw
        self._now = time.time()
        self._ours = our_definition()
        old = look(raw, self._ours, payload_column)
        self._payload = payload_column or "payload"
        if old.definition.column("payload") is None:
            column = quoted(self._payload)
            raw.execute(SQL.rename_column.format(table=old.table, column=column))
            old = look(raw, self._ours, None)
        self._old = old
        self._notes = [
            "an INSERT that lists no columns must list them now, and SELECT * returns ours after the old ones",
            "after a job has finished, only setting its status back to 'pending' has an effect",
        ]

    def run(self, backup: Path, tried: Sequence[str]) -> AdoptReport:
        raw, old = self._raw, self._old
        samples = Samples.take(raw, old, self._ours)
        recovered = raw.execute(SQL.count_running.format(table=old.table)).fetchone()[0]
        self._notes += self._delays_elsewhere()
        forms = {name: form for name in _AS_WRITTEN if (form := self._form(name))}
        self._rebuild(forms)
        rows = raw.execute(SQL.count_jobs).fetchone()[0]
        trial = Trial(raw)
        self._try_ours(trial)
        trial.built_in(old, samples, self._payload)
        trial.given(tried)
        self._notes += self._pruning()
        return AdoptReport(
            rows=rows,
            recovered=recovered,
            backup=backup,
            extra_columns=tuple(c.name for c in old.definition.columns if self._ours.column(c.name) is None),
            notes=tuple(self._notes),
            needing_change=tuple(trial.failing),
        )

    # The table

    def _rebuild(self, forms: dict[str, str]) -> None:
        """Rename the old table, create and fill the new one, restore everything around it."""
        raw, old = self._raw, self._old
        has_sequences = any(name == "sqlite_sequence" for _, name, *_ in raw.execute(SQL.objects))
        row = raw.execute(SQL.sequence).fetchone() if has_sequences else None
        # References and views of other tables go by the name jobs.
        raw.execute("PRAGMA legacy_alter_table = ON")
        raw.execute(SQL.put_aside.format(table=old.table))
        raw.execute(SQL.create.format(definitions=",\n  ".join(self._definitions())))
        values = dict(self._values())
        columns = ", ".join(map(quoted, values))
        copy = SQL.copy.format(columns=columns, values=", ".join(values.values()))
        raw.execute(copy, {"now": self._now})
        raw.execute(SQL.drop)
        sequence = {"seq": row[0] if row else 0}
        raw.execute(SQL.keep_sequence, sequence)
        raw.execute(SQL.add_sequence, sequence)
        for statement in old.indexes:
            raw.execute(statement)
        plan = shipped("supervisor.store.sqlite")
        for migration in plan:
            for statement in statements(migration.sql):
                if table_created(statement) != "jobs":
                    schema.apply(raw, statement)
        schema.stamp(raw, plan[-1].version)
        self._keep_forms(forms)
        for statement in old.triggers:
            raw.execute(statement)

    def _definitions(self) -> Iterator[str]:
        for column in self._old.definition.columns:
            model = self._ours.column(column.name)
            yield column.text if model is None or model.name in _THEIRS else self._shared(column, model)
        for model in self._ours.columns:
            if self._old.definition.column(model.name) is None:
                yield f"{model.text} {self._guard(model, model.name)}".rstrip()
        for text in self._old.definition.constraints:
            words = [token.word for token in tokens(text)]
            kind = words[2] if words[0] == "CONSTRAINT" else words[0]
            if kind == "CHECK" and names(text) & {model.name for model in self._ours.columns}:
                self._notes.append(f"a constraint on columns of ours was left out: {text}")
            elif kind != "PRIMARY":
                yield text
        if self._old.strict:
            self._notes.append("the table is no longer STRICT; CHECKs hold the types of our columns")

    def _shared(self, column: Column, model: Column) -> str:
        """A column that both have: our type and constraints, with the rest of the application's definition."""
        if model.name in _AS_WRITTEN:
            kept = [clause for clause in column.clauses if clause.kind != "CHECK"]
            return " ".join([quoted(column.name), column.declared, *(clause.text for clause in kept)])
        if model.name == "id":
            return " ".join([quoted(column.name), model.declared, *(clause.text for clause in model.clauses)])
        same = column.affinity == model.affinity
        parts = [quoted(column.name), column.declared if same else model.declared]
        default = self._default(column, model)
        if model.not_null:
            parts.append("NOT NULL" if column.not_null or not default else SQL.not_null)
        parts.append(default)
        parts += [clause.text for clause in model.clauses if clause.kind == "CHECK"]
        parts.append(self._guard(model, quoted(column.name)))
        parts += [clause.text for clause in column.clauses if clause.kind in ("UNIQUE", "REFERENCES")]
        if not same:
            declared = column.declared or "nothing"
            self._notes.append(f"`{column.name}` was declared {declared} and is {model.declared} now")
        for clause in column.clauses:
            if clause.kind in ("CHECK", "COLLATE") or (clause.kind == "NOT" and not model.not_null):
                self._notes.append(f"`{column.name}` gave up {clause.text}")
        return " ".join(part for part in parts if part)

    def _default(self, column: Column, model: Column) -> str:
        """The application's default, if it is valid for our jobs."""
        theirs, ours = column.clause("DEFAULT"), model.clause("DEFAULT")
        if theirs is None or theirs.value.upper() == "NULL" or is_time(model):
            return ours.text if ours else ""
        if model.name in ("status", "payload"):
            return ours.text if ours else ""
        return theirs.text

    def _guard(self, model: Column, column: str) -> str:
        """CHECKs instead of STRICT. The primary key needs none: only integers are rowids."""
        if model.name in _FREE or model.name == "id":
            return ""
        types = [f"'{model.declared.lower()}'", *([] if model.not_null else ["'null'"])]
        return SQL.guard.format(column=column, types=", ".join(types))

    # The rows

    def _values(self) -> Iterator[tuple[str, str]]:
        """Each column of the new table that is filled from the old one, with its expression."""
        generated = {row[0] for row in self._raw.execute(SQL.columns, {"table": "jobs_before_adopt"}) if row[3]}
        for column in self._old.definition.columns:
            model = self._ours.column(column.name)
            if column.name not in generated:
                if model is None or model.name in _THEIRS:
                    yield column.name, quoted(column.name)
                else:
                    yield column.name, self._value(column, model)
        if self._old.definition.column("scheduled_at") is None:
            yield "scheduled_at", ":now"
        if self._old.definition.column("completed_at") is None:
            yield "completed_at", self._completed()
        for name in _AS_WRITTEN:
            if self._old.definition.column(name) is None:
                yield name, "NULL"  # unknown

    def _value(self, column: Column, model: Column) -> str:
        name = quoted(column.name)
        if model.name in (*_FREE, "id", "type", "priority"):
            return name
        if model.name == "status":
            return SQL.as_status.format(column=name)
        if model.name in COUNTERS:
            return SQL.as_counter.format(column=name)
        if model.name == "max_attempts":
            return SQL.as_limit.format(column=name)
        if model.name == "completed_at":
            return self._completed()
        if is_time(model):
            value = SQL.as_time.format(column=name)
            return SQL.or_now.format(value=value) if model.not_null else value
        return getattr(SQL, f"as_{model.declared.lower()}").format(column=name)  # type: ignore[no-any-return]

    def _completed(self) -> str:
        sources = [
            SQL.no_later.format(value=SQL.as_time.format(column=quoted(name)))
            for name in ("completed_at", "updated_at", "created_at")
            if self._old.definition.column(name) is not None
        ]
        return SQL.completed.format(sources=", ".join([*sources, "NULL"]))

    def _delays_elsewhere(self) -> Iterator[str]:
        for name in _ELSEWHERE:
            if self._old.definition.column(name) is None:
                continue
            value = SQL.as_time.format(column=quoted(name))
            query = SQL.delayed_elsewhere.format(table=self._old.table, value=value)
            delayed = self._raw.execute(query, {"now": self._now}).fetchone()[0]
            yield f"`{name}` is kept, but job-supervisor goes by scheduled_at: {delayed} delayed jobs are due now"

    # Times as the application writes them

    def _form(self, name: str) -> str | None:
        """How to convert Unix seconds into the application's form; None if it writes seconds."""
        column = self._old.definition.column(name)
        if column is None:
            return None
        query = SQL.latest_time.format(column=quoted(name), table=self._old.table)
        row = self._raw.execute(query).fetchone()
        default = column.clause("DEFAULT")
        if row is None and default is not None:
            row = self._raw.execute(SQL.default_of.format(value=default.value)).fetchone()
        value = row[0] if row else None
        if isinstance(value, (int, float)) and value >= 1e11:
            return SQL.form_milliseconds.format(column=quoted(name))
        match = _TIME.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            return None
        between, fraction, zone = match.groups()
        zone = "" if zone is None else "Z" if zone == "Z" else "+00:00"
        form = f"%Y-%m-%d{between}%H:%M:{'%f' if fraction else '%S'}{zone}"
        return SQL.form_text.format(form=form, column=quoted(name))

    def _keep_forms(self, forms: dict[str, str]) -> None:
        for template, written in ((SQL.form_insert, _AS_WRITTEN), (SQL.form_update, ("updated_at",))):
            mine = {name: SQL.written_by_us.format(column=quoted(name)) for name in written if name in forms}
            assignments = ", ".join(
                SQL.kept_form.format(column=quoted(name), ours=ours, value=forms[name]) for name, ours in mine.items()
            )
            if mine:
                ours = " OR ".join(mine.values())
                self._raw.execute(template.format(ours=ours, assignments=assignments))

    # Our own statements

    def _try_ours(self, trial: Trial) -> None:
        problem = trial.refuses(self._enqueue)
        if problem:
            self._notes.append(f"an enqueue that sets our columns alone is refused: {problem}")
        problem = trial.refuses(self._work)
        if problem:
            raise StoreError(f"the jobs table cannot be adopted: it refuses to have jobs settled: {problem}")

    def _enqueue(self) -> None:
        insert_job(self._raw.cursor(), NewJob("adopted", "{}"), self._now)

    def _work(self) -> None:
        """Claim, fail, claim again, succeed."""
        if not self._raw.execute(SQL.count_jobs).fetchone()[0]:
            self._enqueue()
        type_, requires, priority = self._raw.execute(SQL.make_pending).fetchall()[0]
        group = {"type": type_, "requires": requires, "priority": priority, "want": 1}
        mark = {"owner": "adopt", "now": self._now, "expires_at": self._now}
        policy = RetryPolicy(max_attempts=10**9, base=0.0)
        for attempt in (1, 2):
            row = self._raw.execute(QUERIES.claim_group, group | mark).fetchone()
            claim = Claim._make(row)._replace(attempt=attempt, max_attempts=None)
            failure = failed(claim, Failure("exception", "a trial"), policy, chance=0.5)
            Outcomes("adopt", [failure if attempt == 1 else done(claim, "{}")], self._now).write(self._raw, self._now)

    def _pruning(self) -> Iterator[str]:
        for table, column, on_delete in self._old.pointing:
            if on_delete in ("NO ACTION", "RESTRICT"):
                yield f"a finished job that {table}.{column} points at stays until that row is gone"
