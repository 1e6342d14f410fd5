"""The statements of an adoption: the new table, its rows, triggers for what the application writes, and a view.

The new table has the application's columns first and in their order, then ours. It cannot be STRICT, since the
application's columns may have any declared type, so CHECKs hold what STRICT would.

A word of the application's passes the CHECK, and a trigger replaces it in the same statement: whoever wrote it gets
the number of changed rows and RETURNING as before, and nobody else ever sees the word. The two triggers that
protect claims are made with the words' meaning, or a claim by `processing` would look like a finished job.

created_at and updated_at keep the form in which the application writes them, so that its own comparisons go on meaning
what they meant: the old values stay, and a trigger turns what we write into that form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from supervisor.domain.job import Status
from supervisor.store.migrate import shipped
from supervisor.store.migrate import statements as statements_of
from supervisor.store.sql.connection import literal
from supervisor.store.sqlite.adopt.plan import AS_WRITTEN, Part, Plan, cases
from supervisor.store.sqlite.adopt.table import SQL, Column, Item, quoted

_NO_TYPE = "-"  # until a trigger has read the application's column
_THE_TABLE = re.compile(r"^(?:CREATE|ALTER) TABLE jobs\b", re.M)
_OF_STATES = re.compile(r"\bTRIGGER jobs_(?:defend|stamp) ")
_STATUS = re.compile(r"\b(?:NEW|OLD)\.status\b")


class New(NamedTuple):
    """A column of the new table: its definition, its DEFAULT, and what it has for an old row, if not that."""

    name: str
    text: str
    default: str | None
    value: str | None


def statements_for(plan: Plan) -> Iterator[str]:
    """All of them, in order. The old table is called `jobs` already."""
    new = list(columns(plan))
    filled = {column.name: column.value for column in new if column.value is not None}
    constraints = [item.text for item in plan.table.constraints if not must_go(plan, item)]
    yield "PRAGMA legacy_alter_table = ON"  # references and views of other tables go by the name jobs
    yield SQL.rename_old_table
    yield SQL.create.format(definitions=",\n  ".join([*(column.text for column in new), *constraints]))
    yield SQL.copy.format(columns=", ".join(map(quoted, filled)), values=", ".join(filled.values()))
    yield SQL.keep_sequence
    yield SQL.one_sequence
    yield SQL.drop
    yield from plan.table.indexes
    for migration in shipped("supervisor.store.sqlite"):
        for statement in statements_of(migration.sql):
            if not _THE_TABLE.search(statement):
                yield _with_words(plan, statement)
    yield from _triggers(plan)
    yield from _view(plan, {column.name: column.default for column in new})
    yield from plan.table.triggers


def must_go(plan: Plan, constraint: Item) -> bool:
    """Whether a constraint cannot stay: it is about a column that is ours now."""
    taken = {part.old.lower() for part in plan.parts if part.name != part.old or part.ours is not None}
    kept = {part.old.lower() for part in plan.parts if part.name == part.old and "CHECK" not in constraint.keywords}
    return "PRIMARY" in constraint.keywords or bool(constraint.names & (taken - kept))


# Columns


def columns(plan: Plan) -> Iterator[New]:
    there = set()
    for part in plan.parts:
        column, model, value = part.column, part.ours, quoted(part.old)
        if model is not None and part.shared:
            there.add(model.name)
        if column.generated:
            yield New(part.name, column.item.text, None, None)
        elif model is None and part.name == part.old:
            yield New(part.name, column.item.text, column.default, value)
        elif model is None or model.name in AS_WRITTEN:
            yield New(part.name, _plain(part, not_null=True, default=True), column.default, value)
        elif not part.shared:
            default = column.default if model.name == "id" else None
            unique = " UNIQUE" if model.name == "id" and "UNIQUE" not in column.item.keywords else ""
            yield New(part.name, _plain(part, default=default is not None) + unique, default, value)
        else:
            yield _ours(plan, model, part)
    for model in plan.ours.values():
        if model.name not in there:
            yield _ours(plan, model, plan.part(model.name))


def _plain(part: Part, *, not_null: bool = False, default: bool = False) -> str:
    """A column of the application's that has another name now, or a meaning."""
    column = part.column
    text = [quoted(part.name), column.declared]
    text += ["NOT NULL"] if not_null and column.not_null else []
    text += [f"DEFAULT ({column.default})"] if default and column.default is not None else []
    text += ["UNIQUE"] if "UNIQUE" in column.item.keywords else []
    return " ".join(text)


def _ours(plan: Plan, model: Column, part: Part | None) -> New:
    """A column of ours, perhaps one that the application had. A NULL that the old table took becomes the default."""
    shared = part if part is not None and part.shared else None
    name = model.name if shared is None else shared.name
    text, default = quoted(name) + model.item.text[len(name) :], model.default
    if shared is not None and model.name not in ("id", "status", "payload") and not model.is_time:
        theirs = shared.column.default
        if theirs is not None and theirs.upper() != "NULL":
            text, default = f"{text.replace(f'DEFAULT {default}', '')} DEFAULT ({theirs})", theirs
    if model.name == "type" and shared is None:
        text, default = f"{text} DEFAULT '{_NO_TYPE}'", f"'{_NO_TYPE}'"
    if part is not None and default is not None and not part.column.not_null:
        text = text.replace("NOT NULL", "NOT NULL ON CONFLICT REPLACE", 1)
    if model.name == "status" and plan.foreign:  # the CHECK lets them pass
        named = " OR ".join(f"status = {literal(word)}" for word in plan.foreign)
        text = text.replace(model.check, f"({model.check} OR {named})", 1)
    if model.types:
        text += f" CHECK (typeof({model.name}) IN ({model.types}))"
    if shared is not None and "UNIQUE" in shared.column.item.keywords:
        text += " UNIQUE"
    return New(name, text, default, _value(plan, model, part))


def _value(plan: Plan, model: Column, part: Part | None) -> str | None:
    """What an old row has in a column of ours, as an expression; None for the default."""
    old = "NULL" if part is None else quoted(part.old)
    value = None if part is None else plan.into(model, old)
    if model.name == "id":
        return value if plan.integer_ids else None
    if model.name == "status":  # whoever ran it has been stopped
        return _recovered(plan, old)
    if model.name == "completed_at":
        times = [plan.part(name) for name in ("completed_at", "updated_at", "created_at")]
        ended = [f"min({SQL.as_time.format(value=quoted(part.old))}, {SQL.now})" for part in times if part is not None]
        status = plan.part("status")
        assert status is not None
        return SQL.completed.format(
            status=_recovered(plan, quoted(status.old)), sources=", ".join([*ended, "NULL"]), now=SQL.now
        )
    if model.name == "scheduled_at":
        return f"coalesce({value or 'NULL'}, {SQL.now})"
    return "NULL" if part is None and model.name in AS_WRITTEN else value  # unknown


def _recovered(plan: Plan, value: str) -> str:
    pending = {Status.RUNNING: Status.PENDING}
    return cases(value, {word: pending.get(Status(status), status) for word, status in plan.statuses.items()})


# Triggers


def _with_words(plan: Plan, statement: str) -> str:
    """A statement of our schema; in the triggers that protect claims, states are what their words mean."""
    if not plan.foreign or not _OF_STATES.search(statement):
        return statement
    return _STATUS.sub(lambda match: f"({cases(match[0], plan.foreign)})", statement)


def _trigger(name: str, event: str, when: str, assignments: Iterable[str], checks: Iterable[str] = ()) -> str:
    listed = {"checks": "\n  ".join(checks), "assignments": ", ".join(assignments)}
    return SQL.trigger.format(name=name, event=event, when=when, **listed)


def _triggers(plan: Plan) -> Iterator[str]:
    forms = {name: plan.forms[part.old] for name in AS_WRITTEN if (part := plan.part(name)) and part.old in plan.forms}
    ours = {name: SQL.written_by_us.format(column=name) for name in forms}
    times = {  # of ours in the application's form
        name: f"{name} = CASE WHEN {ours[name]} THEN {form.format(value=f'NEW.{name}')} ELSE NEW.{name} END"
        for name, form in forms.items()
    }
    if times:
        yield _trigger("times_insert", "INSERT", " OR ".join(ours.values()), times.values())
    if "updated_at" in times:
        yield _trigger("times_update", "UPDATE OF updated_at", ours["updated_at"], [times["updated_at"]])
    if plan.foreign:
        written, meaning = f"NEW.status IN ({', '.join(map(literal, plan.foreign))})", cases("status", plan.foreign)
        yield _trigger("words_insert", "INSERT", written, [f"status = {meaning}"])
        yield _trigger("words_update", "UPDATE OF status", written, [f"status = {meaning}"])
    yield from _kept_equal(plan)


def _kept_equal(plan: Plan) -> Iterator[str]:
    """Columns of the application's and of ours of the same meaning: whichever was written fills the other."""
    watched, filled, checks, differing, followed = (list[str]() for _ in range(5))
    for part in plan.parts:
        model, column = part.ours, quoted(part.name)
        if model is None or part.shared:
            continue
        if model.name == "id":
            id_ = "NEW.id" if plan.integer_ids else "CAST(NEW.id AS TEXT)"
            filled.append(f"{column} = coalesce(NEW.{column}, {id_})")
            continue
        ours, value, back = model.name, plan.into(model, f"NEW.{column}"), plan.back(part, f"NEW.{model.name}")
        filled += [f"{column} = coalesce(NEW.{column}, {back})", f"{ours} = coalesce({value}, NEW.{ours})"]
        wrong = f"NEW.{column} <> '' AND {value} IS NULL" if model.is_time else ""
        if ours == "type":
            wrong = f"NEW.{column} IS NULL AND NEW.type = '{_NO_TYPE}'"
        if wrong:
            message = literal(f"jobs.{part.name} {'is no time' if model.is_time else 'may not be NULL'}")
            checks.append(f"{SQL.check.format(message=message, when=wrong)};")
        theirs = f"NEW.{column} IS NOT OLD.{column}"
        watched += [column, ours]
        differing.append(f"(({theirs} OR NEW.{ours} IS NOT OLD.{ours}) AND {value} IS NOT NEW.{ours})")
        followed += [
            f"{ours} = CASE WHEN {theirs} THEN coalesce({value}, {ours}) ELSE {ours} END",
            f"{column} = CASE WHEN NOT {theirs} AND {differing[-1]} THEN {back} ELSE {column} END",
        ]
    if filled:
        yield _trigger("kept_insert", "INSERT", "1", filled, checks)
    if watched:
        yield _trigger("kept_update", f"UPDATE OF {', '.join(watched)}", " OR ".join(differing), followed)


# The view


def _view(plan: Plan, defaults: dict[str, str | None]) -> Iterator[str]:
    """It shows the table as the application knew it, in its words and order, and takes INSERT, UPDATE and DELETE. The
    triggers of the table translate what is written. Through a view a column that is not listed is NULL, so defaults are
    written out.
    """
    if not plan.view:
        return
    shown, inserted, updated = list[str](), dict[str, str](), list[str]()
    for part in plan.parts:
        column, old, default = quoted(part.name), quoted(part.old), defaults[part.name]
        shown.append(cases(column, plan.shown) if part.shared and part.meaning == "status" else column)
        if not part.column.generated:
            inserted[column] = f"NEW.{old}" if default is None else f"coalesce(NEW.{old}, {default})"
            if part.meaning != "id":
                updated.append(f"{column} = CASE WHEN NEW.{old} IS NOT OLD.{old} THEN NEW.{old} ELSE {column} END")
    names = {what: quoted(f"{plan.view}{what}") for what in ("", "_insert", "_update", "_delete")}
    where = {"view": names[""], "key": quoted(plan.key.name), "old_key": quoted(plan.key.old)}
    columns = ", ".join(quoted(part.old) for part in plan.parts)
    yield SQL.view.format(view=names[""], columns=columns, values=", ".join(shown))
    columns = ", ".join(inserted)
    yield SQL.view_insert.format(name=names["_insert"], columns=columns, values=", ".join(inserted.values()), **where)
    yield SQL.view_update.format(name=names["_update"], assignments=", ".join(updated), **where)
    yield SQL.view_delete.format(name=names["_delete"], **where)
