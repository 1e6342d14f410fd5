"""A view that shows the table as the application knew it, and takes its INSERT, UPDATE and DELETE.

It has the old columns in the old order with the old words, ids and times. It takes the table's old name, if that was
not `jobs`; otherwise statements have to name the view. SQLite counts no changed rows through a view.
"""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.store.sqlite.adopt.parts import Part
from supervisor.store.sqlite.adopt.plan import Plan
from supervisor.store.sqlite.adopt.shape import SQL
from supervisor.store.sqlite.definition import quoted


def view(plan: Plan) -> Iterator[str]:
    """Statements that create it."""
    if not plan.view:
        return
    name = quoted(plan.view)
    yield SQL.view.format(
        view=name,
        columns=", ".join(quoted(part.old) for part in plan.parts),
        values=", ".join(_shown(plan, part) for part in plan.parts),
    )
    writable = [part for part in plan.parts if part.old.lower() not in plan.old.generated]
    inserted = {column: value for part in writable for column, value in _inserted(plan, part)}
    where = {"view": name, "key": quoted(plan.key.name), "old_key": quoted(plan.key.old)}
    yield SQL.view_insert.format(
        name=quoted(f"{plan.view}_insert"), columns=", ".join(inserted), values=", ".join(inserted.values()), **where
    )
    assignments = ", ".join(text for part in writable if part.ours != "id" for text in _updated(plan, part))
    yield SQL.view_update.format(name=quoted(f"{plan.view}_update"), assignments=assignments, **where)
    yield SQL.view_delete.format(name=quoted(f"{plan.view}_delete"), **where)


def _shown(plan: Plan, part: Part) -> str:
    column = quoted(part.name)
    if part.original:
        ours = str(part.ours)
        value = plan.into(plan.model(part), column)
        return SQL.as_it_was.format(value=value, ours=ours, column=column, back=plan.back(part, ours))
    if part.shared and part.ours in ("status", "type"):
        return plan.back(part, column)
    return column


def _inserted(plan: Plan, part: Part) -> Iterator[tuple[str, str]]:
    """What an INSERT fills. Through a view a column that is not listed is NULL, so defaults are written out."""
    new = f"NEW.{quoted(part.old)}"
    model = None if part.ours is None else plan.model(part)
    ours = None if model is None else model.clause("DEFAULT")
    theirs = part.column.clause("DEFAULT")
    if part.original:
        yield quoted(part.name), new
        value = plan.into(plan.model(part), new)
        yield str(part.ours), value if ours is None else SQL.or_default.format(value=value, default=ours.value)
        return
    if part.shared and part.ours in ("status", "type"):
        new = plan.into(plan.model(part), new)
        theirs = None
    default = theirs or (ours if part.shared else None)
    yield quoted(part.name), new if default is None else SQL.or_default.format(value=new, default=default.value)


def _updated(plan: Plan, part: Part) -> Iterator[str]:
    new, old = f"NEW.{quoted(part.old)}", quoted(part.old)
    value = new
    if part.original:
        ours = SQL.or_default.format(value=plan.into(plan.model(part), new), default=part.ours)
        yield SQL.if_changed.format(column=part.ours, old=old, value=ours)
    elif part.shared and part.ours in ("status", "type"):
        value = plan.into(plan.model(part), new)
    yield SQL.if_changed.format(column=quoted(part.name), old=old, value=value)
