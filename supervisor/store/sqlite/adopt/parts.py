"""What becomes of each column of the old table: a pure proposal, which options change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from supervisor.domain.errors import InvalidOption, StoreError
from supervisor.domain.text import like
from supervisor.store.sqlite.adopt.shape import Old, is_time
from supervisor.store.sqlite.definition import Column, Definition

# Proposed if the table has no column of our name, and exactly one of these.
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "type": ("job_type", "task_type", "kind", "task", "name"),
    "payload": ("data", "body", "args", "arguments", "params", "input"),
    "status": ("state",),
    "scheduled_at": (
        *("scheduled_for", "run_after", "run_at", "not_before", "available_at"),
        *("next_run_at", "next_attempt_at"),
    ),
    "attempts": ("retry_count", "retries", "tries"),
    "last_error": ("error", "error_message"),
    "completed_at": ("finished_at",),
}
NEEDED = ("type", "status", "payload")
# What only our claims may write. To the triggers that protect claims, a program that uses one of these for its own
# purposes would look like one of our workers.
CLAIM = ("locked_by", "locked_at", "lock_expires_at", "claim_token")
THEIRS = ("meta",)  # an application's column of this name stays as it is, and is shown


class Part(NamedTuple):
    """One old column. `name` is where the application's values stand in the new table, `ours` our column that takes
    its meaning, if any. There are four kinds:

    - `name` is `ours`: one column for both;
    - `name` is the old name, `ours` another: both stay, and triggers keep them equal;
    - `name` is new, `ours` has the old name: the original values stay beside ours;
    - no `ours`: the application's own.
    """

    column: Column
    name: str
    ours: str | None
    proposed: bool = False  # by us, not by an option

    @property
    def old(self) -> str:
        return self.column.name

    @property
    def shared(self) -> bool:
        return self.ours is not None and self.name.lower() == self.ours

    @property
    def mirrored(self) -> bool:
        return self.ours not in (None, "id") and self.name == self.old and not self.shared

    @property
    def original(self) -> bool:
        return self.ours not in (None, "id") and self.name != self.old


class Facts(NamedTuple):
    """What the rows say that the definition does not."""

    integer_key: bool  # every key is an integer
    written: frozenset[str]  # columns in which times are text or milliseconds


def assign(old: Old, ours: Definition, renames: Mapping[str, str], facts: Facts) -> list[Part]:
    """A Part for each old column. Raises InvalidOption for a wrong rename, StoreError for what is missing."""
    chosen = _chosen(old, ours, renames)
    given = {name.lower(): new for name, new in renames.items()}
    names = {column.name.lower() for column in old.definition.columns} | {model.name for model in ours.columns}
    names |= {name.lower() for name in renames.values()}
    parts: list[Part] = []
    for column in old.definition.columns:
        part = _part(column, old, ours, chosen, facts)
        if part.name not in (part.old, given.get(part.old.lower())):
            part = part._replace(name=_unused(part.name, names))
        names.add(part.name.lower())
        parts.append(part)
    reasons = list(_reasons(parts, old, ours))
    if reasons:
        raise StoreError("the jobs table cannot be adopted as it is: " + "; ".join(reasons))
    return parts


def _chosen(old: Old, ours: Definition, renames: Mapping[str, str]) -> dict[str, tuple[str, bool]]:
    """The new meaning or name of columns, and whether it is only proposed. Keys are in lower case."""
    chosen: dict[str, tuple[str, bool]] = {}
    for name, new in renames.items():
        problem = _unfit(old, ours, name, new, renames)
        if new.lower() in [taken.lower() for taken, _ in chosen.values()]:
            problem = f"another column becomes `{new}` already"
        if problem:
            raise InvalidOption(f"--rename {name}={new}: {problem}")
        chosen[name.lower()] = (new.lower() if ours.column(new) else new, False)
    kept = {c.name.lower() for c in old.definition.columns if c.name.lower() not in chosen}
    have = {new for new, _ in chosen.values()} | kept
    for model, synonyms in SYNONYMS.items():
        candidates = [name for name in synonyms if name in kept and name != old.key.lower()]
        if model not in have and len(candidates) == 1:
            chosen[candidates[0]] = (model, True)
    return chosen


def _unfit(old: Old, ours: Definition, name: str, new: str, renames: Mapping[str, str]) -> str | None:
    """Why a column cannot become this."""
    column, other, model = old.definition.column(name), old.definition.column(new), ours.column(new)
    if column is None:
        return f"the table has no column `{name}`{like(name, [each.name for each in old.definition.columns])}"
    if other not in (None, column) and new.lower() not in map(str.lower, renames):
        return f"the table has a column `{new}` already; rename that one, too"
    if new.lower() in CLAIM:
        return f"`{new}` holds the claims of job-supervisor's workers"
    if model is not None and column.name.lower() in old.generated:
        return f"`{name}` is a generated column"
    if model is not None and (new.lower() == "id") != (column.name == old.key):
        key = f"`{old.key}` is the primary key"
        return f"{key}, and can only be the id" if column.name == old.key else f"{key}, and only that can be the id"
    return None


def _part(column: Column, old: Old, ours: Definition, chosen: Mapping[str, tuple[str, bool]], facts: Facts) -> Part:
    name = column.name
    if name == old.key and chosen.get(name.lower(), ("id",))[0] == "id" and facts.integer_key:
        return Part(column, name, "id", proposed=name.lower() != "id")
    if name == old.key:
        kept = chosen.get(name.lower(), (f"old_{name}" if name.lower() == "id" else name,))[0]
        return Part(column, name if kept == "id" else kept, "id", proposed=name.lower() not in chosen)
    new, proposed = chosen.get(name.lower(), (name.lower(), True))
    model = ours.column(new)
    if new == name.lower() and new in CLAIM:
        return Part(column, f"old_{name}", None, proposed=True)
    if model is None:
        return Part(column, name if new == name.lower() else new, None)
    if new != name.lower():
        return Part(column, name if ours.column(name) is None else f"old_{name}", new, proposed)
    if is_time(model) and name in facts.written:
        return Part(column, f"old_{name}", new, proposed=True)
    return Part(column, name, new)


def _unused(name: str, names: Iterable[str]) -> str:
    while name.lower() in names:
        name += "_"
    return name


def _reasons(parts: list[Part], old: Old, ours: Definition) -> Iterator[str]:
    there = {part.ours for part in parts}
    for name in NEEDED:
        if name not in there:
            similar = [part.old for part in parts if part.old.lower() in SYNONYMS[name]]
            other = similar[0] if similar else "OTHER"
            yield f"it has no column `{name}`; if another one has this meaning, say so with --rename {other}={name}"
    for part in parts:
        if part.ours is not None and part.old.lower() in old.generated:
            yield f"its column `{part.old}` is generated"
    key = next(part for part in parts if part.ours == "id")
    if "id" in {part.old.lower() for part in parts if part is not key}:
        yield "its column `id` is not the primary key"
    if key.name != key.old:
        for table, column, _ in old.pointing:
            yield f"{table}.{column} refers to its ids, which become integers; drop that foreign key first"
