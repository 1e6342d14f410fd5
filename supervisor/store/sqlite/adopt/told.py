"""What the plan tells beside its columns and words: the notes."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.store.sqlite.adopt.plan import Plan
from supervisor.store.sqlite.adopt.shape import TABLE
from supervisor.store.sqlite.definition import tokens


def notes(plan: Plan) -> Iterator[str]:
    """Sentences for people."""
    if plan.old.name.lower() == TABLE:
        yield "an INSERT that lists no columns must list them now, and SELECT * returns ours after the old ones"
    yield "after a job has finished, only setting its status back to 'pending' has an effect"
    yield from _of_words(plan)
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
    yield from _of_pruning(plan)
    yield from _of_objects(plan)


def _of_words(plan: Plan) -> Iterator[str]:
    for status, words in plan.words.merged():
        listed = ", ".join(f"'{word}'" for word in words)
        yield f"{listed} become '{status}' alike; the copy of the database keeps the difference"
    for word, status in plan.words.foreign_statuses.items():
        yield f"a query for status '{word}' finds nothing in `{TABLE}`: '{status}' is stored"


def _of_pruning(plan: Plan) -> Iterator[str]:
    for table, column, on_delete in plan.old.pointing:
        if on_delete in ("NO ACTION", "RESTRICT"):
            yield f"a finished job that {table}.{column} points at stays until that row is gone"


def _of_objects(plan: Plan) -> Iterator[str]:
    """Triggers and views of the application that read a word which is not stored any more."""
    foreign = plan.words.foreign_statuses
    for kind, objects in (("trigger", plan.old.triggers), ("view", plan.old.views)):
        for name, sql in objects:
            read = {token.name for token in tokens(sql) if token.kind == "quoted"} & set(foreign)
            if read:
                listed = ", ".join(f"'{word}'" for word in sorted(read))
                yield f"the {kind} `{name}` names {listed}, which job-supervisor does not write; look through it"
