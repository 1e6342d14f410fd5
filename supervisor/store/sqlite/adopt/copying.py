"""The rows of the new table: each of its columns with an expression over the old one."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.domain.job import Status
from supervisor.store.sqlite.adopt.parts import THEIRS, Part
from supervisor.store.sqlite.adopt.plan import AS_WRITTEN, Plan, cases
from supervisor.store.sqlite.adopt.shape import SQL, is_time
from supervisor.store.sqlite.definition import quoted

_RECOVERED = {str(Status.RUNNING): str(Status.PENDING)}  # whoever ran it has been stopped


def values(plan: Plan) -> dict[str, str]:
    """By the new column. `:now` is the time of the adoption, in Unix seconds."""
    return dict(_values(plan))


def _values(plan: Plan) -> Iterator[tuple[str, str]]:
    for part in plan.parts:
        if part.old.lower() in plan.old.generated:
            continue
        if not part.shared or part.ours in THEIRS:
            yield part.name, quoted(part.old)
        if part.ours is not None and (part.ours != "id" or plan.integer_ids) and part.ours not in THEIRS:
            yield part.name if part.shared else part.ours, _value(plan, part)
    there = {part.ours for part in plan.parts}
    if "scheduled_at" not in there:
        yield "scheduled_at", ":now"
    if "completed_at" not in there:
        yield "completed_at", _completed(plan)
    for name in AS_WRITTEN:
        if name not in there:
            yield name, "NULL"  # unknown


def _value(plan: Plan, part: Part) -> str:
    model, value = plan.model(part), quoted(part.old)
    if model.name == "status":
        return _status(plan, value)
    if model.name == "completed_at":
        return _completed(plan)
    if is_time(model) and model.not_null:
        return SQL.or_now.format(value=plan.into(model, value))
    return plan.into(model, value)


def _status(plan: Plan, value: str) -> str:
    return cases(value, {word: _RECOVERED.get(status, status) for word, status in plan.words.statuses.items()})


def _completed(plan: Plan) -> str:
    """When a job that is finished ended, as far as the old row tells."""
    status = plan.part("status")
    assert status is not None
    sources = [
        SQL.no_later.format(value=SQL.as_time.format(value=quoted(part.old)))
        for name in ("completed_at", "updated_at", "created_at")
        if (part := plan.part(name)) is not None
    ]
    return SQL.completed.format(status=_status(plan, quoted(status.old)), sources=", ".join([*sources, "NULL"]))
