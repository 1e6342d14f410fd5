"""The whole plan of an adoption: what becomes of columns, words, times and ids. Nothing here changes anything."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from supervisor.domain.errors import InvalidOption
from supervisor.domain.job import Status
from supervisor.domain.text import counted
from supervisor.store.sqlite.adopt import shape
from supervisor.store.sqlite.adopt.parts import THEIRS, Facts, Part, assign
from supervisor.store.sqlite.adopt.shape import SQL, TABLE, Old, is_time
from supervisor.store.sqlite.adopt.words import Words, understand
from supervisor.store.sqlite.definition import Clause, Column, Definition, names, quoted, tokens
from supervisor.store.values import AdoptedColumn, AdoptOptions

COUNTERS = ("attempts", "crashes", "claim_token")  # clamped when they are copied
# Bytes of any kind may stand here: a job whose payload is no JSON fails with a clear error, and nothing
# is decided by the others.
FREE = ("payload", "last_error", "created_at", "updated_at")
AS_WRITTEN = ("created_at", "updated_at")
_TIME = re.compile(r"\d{4}-\d\d-\d\d([ T])\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?")


class Plan(NamedTuple):
    old: Old
    ours: Definition
    parts: tuple[Part, ...]
    words: Words
    forms: dict[str, str]  # by the old column: how the application writes our seconds there, with {value}
    integer_ids: bool  # the application's ids stay the ids of the jobs
    view: str  # for statements in the application's words; empty if none is needed
    rows: int
    running: int
    finished: int
    types: tuple[str, ...]  # the most frequent ones, as they will be

    @property
    def key(self) -> Part:
        return next(part for part in self.parts if part.ours == "id")

    def part(self, ours: str) -> Part | None:
        """The column that has one of our meanings."""
        return next((part for part in self.parts if part.ours == ours), None)

    def model(self, part: Part) -> Column:
        model = self.ours.column(part.ours or "")
        assert model is not None
        return model

    # From the application's values to ours and back, as expressions

    def into(self, model: Column, value: str) -> str:
        """What our column holds for a value of the application's; a time that is none is NULL."""
        if model.name == "status":
            return cases(value, self.words.statuses)
        if model.name == "type":
            return cases(value, self.words.types)
        if model.name in (*FREE, *THEIRS, "id", "priority"):
            return value
        if model.name in COUNTERS:
            return SQL.as_counter.format(value=value)
        if model.name == "max_attempts":
            return SQL.as_limit.format(value=value)
        if is_time(model):
            return SQL.as_time.format(value=value)
        return str(getattr(SQL, f"as_{model.declared.lower()}")).format(value=value)

    def back(self, part: Part, value: str) -> str:
        """What the application would have written for a value of ours."""
        if part.ours == "status":
            return cases(value, self.words.shown_statuses)
        if part.ours == "type":
            return cases(value, self.words.shown_types)
        form = self.forms.get(part.old)
        return value if form is None else form.format(value=value)

    def word_of(self, status: Status) -> str:
        """The application's word for one of our states."""
        return self.words.shown_statuses.get(status, status)

    def columns(self) -> Iterator[AdoptedColumn]:
        for part in self.parts:
            yield AdoptedColumn(part.old, part.name, part.ours, part.proposed)


def cases(value: str, words: dict[str, str]) -> str:
    """An expression that replaces words; others stay."""
    if not words:
        return value
    each = (SQL.word.format(word=literal(word), new=literal(new)) for word, new in words.items())
    return SQL.words.format(value=value, cases=" ".join(each))


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def propose(raw: sqlite3.Connection, options: AdoptOptions) -> Plan:
    """Raises InvalidOption for an option that does not fit, StoreError with all reasons for a table that cannot be
    taken over, and NothingToAdopt for one of ours.
    """
    ours = shape.our_definition()
    if options.view.lower() in (TABLE, shape.ASIDE) or options.view.lower().startswith("sqlite_"):
        raise InvalidOption(f"--view {options.view}: the view needs a name of its own")
    old = shape.read(raw, options.table, options.view)
    facts = _facts(raw, old, ours)
    parts = tuple(assign(old, ours, options.renames, facts))
    column = {part.ours: part.column for part in parts}
    found = _counted(raw, SQL.found_words, old, column["status"].name)
    words, reasons = understand(found, column["status"], old.definition.constraints, options.statuses, options.types)
    kinds = SQL.has_type.format(column=quoted(column["type"].name), table=old.table)
    used = (new for new in words.types.values() if raw.execute(kinds, {"type": new}).fetchone()[0])
    words = words._replace(used=frozenset(used))
    counts = Counter[str]()
    for word, count in found:
        counts[words.statuses.get(word or "", "")] += count
    finished = sum(count for status, count in counts.items() if status and Status(status).finished)
    found = _counted(raw, SQL.found_types, old, column["type"].name)
    types = [words.types.get(type_ or "", type_ or "") for type_, _ in found]
    rows = raw.execute(SQL.rows.format(table=old.table)).fetchone()[0]
    forms = {part.old: form for part in parts if (form := _form(raw, old, part, ours))}
    plan = Plan(
        old,
        ours,
        parts,
        words,
        forms,
        facts.integer_key,
        "",
        rows,
        counts[Status.RUNNING],
        finished,
        tuple(dict.fromkeys(types)),
    )
    reasons = reasons or [*_unfit(raw, plan), *_beyond(raw, plan)]
    if reasons:
        raise shape.refusal(reasons)
    return plan._replace(view=_view(plan, options.view))


def _counted(raw: sqlite3.Connection, query: str, old: Old, column: str) -> list[tuple[str | None, int]]:
    return raw.execute(query.format(column=quoted(column), table=old.table)).fetchall()


def _facts(raw: sqlite3.Connection, old: Old, ours: Definition) -> Facts:
    def count(query: str, column: str) -> int:
        return int(raw.execute(query.format(table=old.table, column=quoted(column))).fetchone()[0])

    key = old.definition.column(old.key)
    assert key is not None
    integer = key.affinity == "INTEGER" and not count(SQL.other_keys, old.key)
    times = [column for column in old.definition.columns if is_time(ours.column(column.name) or column)]
    written = {
        column.name
        for column in times
        if count(SQL.written_times, column.name) or column.affinity in ("TEXT", "NUMERIC")
    }
    return Facts(integer, frozenset(written))


def _view(plan: Plan, wanted: str) -> str:
    """The name of the view; only a table whose statements all go on by themselves needs none."""
    if wanted:
        return wanted
    if plan.old.name.lower() != TABLE:
        return plan.old.name
    changed = any(part.name != part.old for part in plan.parts) or plan.words.shown_statuses or plan.words.shown_types
    if not changed and plan.key.shared:
        return ""
    name = f"old_{TABLE}"
    while plan.old.taken & {name, *(f"{name}_{what}" for what in ("insert", "update", "delete"))}:
        name += "_"
    return name


# Times as the application writes them


def _form(raw: sqlite3.Connection, old: Old, part: Part, ours: Definition) -> str | None:
    """How to convert Unix seconds into the application's form; None if it writes seconds, or no times."""
    model = ours.column(part.ours or "")
    if model is None or not (is_time(model) or model.name in AS_WRITTEN):
        return None
    query = SQL.latest_time.format(column=quoted(part.old), table=old.table)
    row = raw.execute(query).fetchone()
    default = part.column.clause("DEFAULT")
    if row is None and default is not None:
        row = raw.execute(SQL.default_of.format(value=default.value)).fetchone()
    value = row[0] if row else None
    if isinstance(value, (int, float)):
        return SQL.form_milliseconds if value >= 1e11 else None
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        written = model.name not in AS_WRITTEN and part.column.affinity in ("TEXT", "NUMERIC")
        return SQL.form_text.replace("{form}", "%Y-%m-%d %H:%M:%S") if written else None
    between, fraction, zone = match.groups()
    zone = "" if zone is None else "Z" if zone == "Z" else "+00:00"
    return SQL.form_text.replace("{form}", f"%Y-%m-%d{between}%H:%M:{'%f' if fraction else '%S'}{zone}")


# Values that no job can have


def _unfit(raw: sqlite3.Connection, plan: Plan) -> Iterator[str]:
    """Values that our columns must not have. NULL stands for the default if there is one."""
    for part in plan.parts:
        model = plan.ours.column(part.ours or "")
        if model is None:
            continue
        column, check = quoted(part.old), model.clause("CHECK")
        value = plan.into(model, column)
        keep = f"; --rename {part.old}=old_{part.old} would keep it as a column of your own"
        if is_time(model):
            query = SQL.no_times.format(column=column, table=plan.old.table, value=value)
        elif check is not None and model.name in ("type", "priority"):
            query = SQL.offending.format(
                column='"shown"',
                shown=column,
                value=value,
                ours=model.name,
                table=plan.old.table,
                optional=int(model.name == "priority"),
                type=model.affinity.lower(),
                check=check.value,
            )
            keep = "; give it another name with --type-map OLD=NEW" if model.name == "type" else keep
        else:
            continue
        rows = raw.execute(query).fetchall()
        if rows:
            listed = ", ".join(f"{short(value)} ({counted(count, 'row')})" for value, count in rows)
            yield f"`{part.old}` holds what job-supervisor cannot take: {listed}{keep}"


def _beyond(raw: sqlite3.Connection, plan: Plan) -> Iterator[str]:
    """Rows that our CHECKs would refuse."""
    for check in fences(plan.ours):
        model = next((model for model in plan.ours.columns if model.name in names(check.value)), None)
        part = None if model is None else plan.part(model.name)
        if model is None or part is None or (model.name == "id" and not plan.integer_ids):
            continue
        query = SQL.beyond.format(
            table=plan.old.table, check=check.value, value=plan.into(model, quoted(part.old)), ours=model.name
        )
        [(rows,)] = raw.execute(query).fetchall()
        if rows:
            yield f"`{part.old}` holds what no job can have ({counted(rows, 'row')}): {' '.join(check.text.split())}"


def fences(ours: Definition) -> Sequence[Clause]:
    """The CHECKs of columns whose values are taken as they are."""
    columns = (ours.column(name) for name in ("id", "payload", "requires", "unique_key"))
    return [check for column in columns if column is not None and (check := column.clause("CHECK")) is not None]


def short(value: Any) -> str:
    text = "NULL" if value is None else repr(value)
    return text if len(text) <= 40 else text[:37] + "…"


# What people are told


def notes(plan: Plan) -> Iterator[str]:
    """What people are told beside the columns and words."""
    if plan.old.name.lower() == TABLE:
        yield "an INSERT that lists no columns must list them now, and SELECT * returns ours after the old ones"
    yield "after a job has finished, only setting its status back to 'pending' has an effect"
    yield from _notes_on_words(plan)
    if not plan.key.shared and not plan.integer_ids:
        yield f"`id` is a number now; the application's ids are in `{plan.key.name}`"
    if {part.ours for part in plan.parts if part.old in plan.forms} & {"scheduled_at", "completed_at", "started_at"}:
        yield "times without a zone are read as UTC"
    if plan.part("priority") is not None:
        yield "the job with the highest `priority` runs first"
    if plan.view:
        yield (
            f"`{plan.view}` shows the table as it was and takes INSERT, UPDATE and DELETE; through it SQLite counts no "
            "changed rows, and RETURNING is incomplete, so it is not for claims"
        )
    yield from _notes_on_pruning(plan)
    yield from _notes_on_objects(plan)


def _notes_on_words(plan: Plan) -> Iterator[str]:
    for status, words in plan.words.merged():
        listed = ", ".join(f"'{word}'" for word in words)
        yield f"{listed} become '{status}' alike; the copy of the database keeps the difference"
    for word, status in plan.words.foreign_statuses.items():
        yield f"a query for status '{word}' finds nothing in `{TABLE}`: '{status}' is stored"


def _notes_on_pruning(plan: Plan) -> Iterator[str]:
    for table, column, on_delete in plan.old.pointing:
        if on_delete in ("NO ACTION", "RESTRICT"):
            yield f"a finished job that {table}.{column} points at stays until that row is gone"


def _notes_on_objects(plan: Plan) -> Iterator[str]:
    """Triggers and views of the application that read a word which is not stored any more."""
    foreign = plan.words.foreign_statuses
    for kind, objects in (("trigger", plan.old.triggers), ("view", plan.old.views)):
        for name, sql in objects:
            read = {token.name for token in tokens(sql) if token.kind == "quoted"} & set(foreign)
            if read:
                listed = ", ".join(f"'{word}'" for word in sorted(read))
                yield f"the {kind} `{name}` names {listed}, which job-supervisor does not write; look through it"
