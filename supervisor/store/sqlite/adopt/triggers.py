"""Triggers that let the application go on writing its own words, its own columns and its own form of times.

created_at and updated_at keep the form in which the application writes them, so that its own comparisons
(`DELETE … WHERE updated_at < datetime('now', '-7 days')`) go on meaning what they meant: the old values
stay, and a trigger turns what we write into that form. Nothing of ours is decided by these columns; what
is decided by a time (completed_at, for retention) is converted from them.

A word of the application's passes the CHECK, and a trigger replaces it in the same statement: whoever wrote it gets
the number of changed rows and RETURNING as before, and nobody else ever sees the word. The two triggers that
protect claims are made with the words' meaning, or a claim by `processing` would look like a finished job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from supervisor.store.sqlite.adopt.definitions import NO_TYPE
from supervisor.store.sqlite.adopt.parts import Part
from supervisor.store.sqlite.adopt.plan import AS_WRITTEN, Plan, cases, literal
from supervisor.store.sqlite.adopt.shape import SQL, is_time
from supervisor.store.sqlite.definition import quoted, tokens

_DEFENDING = ("jobs_defend", "jobs_stamp")
_STATUS = re.compile(r"\b(?:NEW|OLD)\.status\b")


def with_words(plan: Plan, statement: str) -> str:
    """A statement of our schema; in the triggers that protect claims, states are what their words mean."""
    foreign = plan.words.foreign_statuses
    start = tokens(statement, 3)
    if not foreign or [token.word for token in start[:2]] != ["CREATE", "TRIGGER"] or start[2].name not in _DEFENDING:
        return statement
    return _STATUS.sub(lambda match: f"({cases(match[0], foreign)})", statement)


def triggers(plan: Plan) -> Iterator[str]:
    """Statements that create what the plan needs."""
    yield from _forms(plan)
    yield from _words(plan)
    yield from _mirrors(plan)


def _forms(plan: Plan) -> Iterator[str]:
    """Times of ours in the application's form."""
    forms = {part.ours: plan.forms[part.old] for part in plan.parts if part.shared and part.old in plan.forms}
    for template, written in ((SQL.form_insert, AS_WRITTEN), (SQL.form_update, ("updated_at",))):
        mine = {name: SQL.written_by_us.format(column=quoted(name)) for name in written if name in forms}
        if mine:
            assignments = ", ".join(
                SQL.kept_form.format(
                    column=quoted(name), ours=ours, value=forms[name].format(value=f"NEW.{quoted(name)}")
                )
                for name, ours in mine.items()
            )
            yield template.format(ours=" OR ".join(mine.values()), assignments=assignments)


def _words(plan: Plan) -> Iterator[str]:
    foreign = {"status": plan.words.foreign_statuses, "type": plan.words.foreign_types}
    foreign = {column: words for column, words in foreign.items() if words}
    if not foreign:
        return
    which = " OR ".join(
        SQL.is_foreign.format(column=column, words=", ".join(map(literal, words))) for column, words in foreign.items()
    )
    assignments = ", ".join(f"{column} = {cases(column, words)}" for column, words in foreign.items())
    yield SQL.words_insert.format(foreign=which, assignments=assignments)
    yield SQL.words_update.format(columns=", ".join(foreign), foreign=which, assignments=assignments)


def _mirrors(plan: Plan) -> Iterator[str]:
    key = plan.key
    mirrored = [part for part in plan.parts if part.mirrored]
    assignments = [text for part in mirrored for text in _both_filled(plan, part)]
    if not key.shared:
        id_ = "NEW.id" if plan.integer_ids else "CAST(NEW.id AS TEXT)"
        column = quoted(key.name)
        assignments.append(SQL.filled.format(column=column, first=f"NEW.{column}", second=id_))
    if assignments:
        checks = "\n  ".join(f"{check};" for part in mirrored for check in _checks(plan, part))
        yield SQL.kept_insert.format(checks=checks, assignments=", ".join(assignments))
    if mirrored:
        yield SQL.kept_update.format(
            columns=", ".join(f"{quoted(part.name)}, {part.ours}" for part in mirrored),
            differs=" OR ".join(_differs(plan, part) for part in mirrored),
            assignments=", ".join(text for part in mirrored for text in _followed(plan, part)),
        )


def _both_filled(plan: Plan, part: Part) -> Iterator[str]:
    column, ours = quoted(part.name), f"NEW.{part.ours}"
    value = plan.into(plan.model(part), f"NEW.{column}")
    yield SQL.filled.format(column=column, first=f"NEW.{column}", second=plan.back(part, ours))
    yield SQL.filled.format(column=part.ours, first=value, second=ours)


def _checks(plan: Plan, part: Part) -> Iterator[str]:
    column, model = quoted(part.name), plan.model(part)
    if is_time(model):
        value = plan.into(model, f"NEW.{column}")
        yield SQL.no_time.format(column=column, value=value, message=literal(f"jobs.{part.name} is no time"))
    if model.name == "type":
        assert NO_TYPE in SQL.no_type
        yield SQL.no_type.format(column=column, message=literal(f"jobs.{part.name} may not be NULL"))


def _differs(plan: Plan, part: Part) -> str:
    column = quoted(part.name)
    value = plan.into(plan.model(part), f"NEW.{column}")
    return SQL.differs.format(column=column, ours=part.ours, value=value)


def _followed(plan: Plan, part: Part) -> Iterator[str]:
    column = quoted(part.name)
    value = plan.into(plan.model(part), f"NEW.{column}")
    yield SQL.follow_theirs.format(column=column, ours=part.ours, value=value)
    back = plan.back(part, f"NEW.{part.ours}")
    yield SQL.follow_ours.format(column=column, differs=_differs(plan, part), back=back)
