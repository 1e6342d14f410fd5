"""What becomes of an application's columns, words, times and ids: a proposal, which options change.

Nothing here changes anything.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from supervisor.domain.errors import InvalidOption
from supervisor.domain.job import Status
from supervisor.domain.text import counted, like
from supervisor.store.base import AdoptOptions
from supervisor.store.sql.connection import literal
from supervisor.store.sqlite.adopt.table import SQL, TABLE, Column, Table, our_schema, quoted, read, refusal

# Proposed if the table has no column of our name, and exactly one of these.
_SYNONYMS: Mapping[str, tuple[str, ...]] = {
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
_NEEDED = ("type", "status", "payload")
# What only our claims may write. To the triggers that protect claims, a program that uses one of these for its own
# purposes would look like one of our workers.
_CLAIM = ("locked_by", "locked_at", "lock_expires_at", "claim_token")
AS_WRITTEN = ("created_at", "updated_at")  # they keep the application's form of times

_WORDS: Mapping[str, tuple[str, ...]] = {
    "pending": ("queued", "waiting", "new", "ready", "scheduled", "created", "todo", "retry", "retrying", "delayed"),
    "running": ("processing", "in_progress", "in-progress", "claimed", "active", "started", "working", "locked"),
    "done": ("completed", "complete", "success", "succeeded", "successful", "finished", "ok", "processed"),
    "failed": ("error", "errored", "failure", "dead"),
    "cancelled": ("canceled", "aborted", "skipped"),
    "quarantined": (),
}
_PROPOSED = {word: status for status, words in _WORDS.items() for word in (status, *words)} | {
    "quarantined": "quarantined"
}
_TIME = re.compile(r"\d{4}-\d\d-\d\d([ T])\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?")


class Part(NamedTuple):
    """One old column. `name` is where the application's values stand in the new table, `ours` our column that takes
    its meaning, if any:

    - `name` is that of `ours`: one column for both;
    - another one: both stay, and triggers keep them equal;
    - no `ours`: the application's own.
    """

    column: Column
    name: str
    ours: Column | None
    proposed: bool  # by us, not by an option

    @property
    def old(self) -> str:
        return self.column.name

    @property
    def meaning(self) -> str:
        return "" if self.ours is None else self.ours.name

    @property
    def shared(self) -> bool:
        return self.name.lower() == self.meaning


class Plan(NamedTuple):
    table: Table
    ours: Mapping[str, Column]
    parts: tuple[Part, ...]
    statuses: Mapping[str, str]  # our state for each word of the application's
    foreign: Mapping[str, str]  # our state for each word that is never stored
    shown: Mapping[str, str]  # the application's word for each state of ours that has another one there
    forms: Mapping[str, str]  # by the old column: how the application writes our seconds there, with {value}
    integer_ids: bool  # the application's ids stay the ids of the jobs
    view: str  # for statements in the application's words; empty if none is needed
    counts: Counter[str]  # rows by our state
    job_types: tuple[str, ...]  # the most frequent ones

    @property
    def key(self) -> Part:
        return next(part for part in self.parts if part.meaning == "id")

    def part(self, meaning: str) -> Part | None:
        return next((part for part in self.parts if part.meaning == meaning), None)

    def into(self, model: Column, value: str) -> str:
        """An expression for what our column holds for a value of the application's; a time that is none is NULL."""
        if model.name == "status":
            return cases(value, self.statuses)
        if model.is_time:
            return SQL.as_time.format(value=value)
        if model.name in ("attempts", "crashes"):
            return f"max(0, min(CAST({value} AS INTEGER), 1000000))"
        if model.name == "max_attempts":
            return f"CASE WHEN CAST({value} AS INTEGER) >= 1 THEN CAST({value} AS INTEGER) END"
        if model.name == "priority" or not model.types:
            return value
        return f"CAST({value} AS {model.declared})"

    def back(self, part: Part, value: str) -> str:
        """An expression for what the application would have written for a value of ours."""
        if part.meaning == "status":
            return cases(value, self.shown)
        return self.forms.get(part.old, "{value}").format(value=value)


def cases(value: str, words: Mapping[str, str]) -> str:
    """An expression that replaces words; others stay."""
    each = " ".join(f"WHEN {literal(word)} THEN {literal(new)}" for word, new in words.items())
    return f"CASE CAST({value} AS TEXT) {each} ELSE {value} END" if words else value


def propose(raw: sqlite3.Connection, options: AdoptOptions, name: str) -> Plan:
    """For the table that is called `name` by now. Raises InvalidOption for an option that does not fit, StoreError with
    all reasons for a table that cannot be taken over, and NothingToAdopt for one of ours.
    """
    table = read(raw, name)
    _check_words(options.statuses)
    ours = {name: model for name, model in our_schema().columns.items() if name != "meta" or not table.column("meta")}

    def ask(query: str, column: str) -> list[Any]:
        return raw.execute(query.format(table=quoted(table.name), column=quoted(column))).fetchall()

    key = table.column(table.key)
    assert key is not None
    integer_ids = "INT" in key.declared.upper() and not ask(SQL.other_keys, table.key)
    written = {
        column.name
        for column in table.columns
        if (model := ours.get(column.name.lower())) is not None and model.is_time
        if not _may_be_seconds(column) or ask(SQL.written_times, column.name)
    }
    parts = tuple(_assigned(table, ours, options.renames, integer_ids, written))
    if reasons := list(_missing(parts, table)):
        raise refusal(reasons)
    column = {part.meaning: part.column for part in parts}
    found = ask(SQL.found_words, column["status"].name)
    statuses, reasons = _understood(found, column["status"], table, options.statuses)
    counts = Counter[str]()
    for word, count in found:
        counts[statuses.get(word, "")] += count
    plan = Plan(
        table,
        ours,
        parts,
        statuses,
        {word: status for word, status in statuses.items() if word not in _OURS},
        # The first word counts, for those of ours that the application does not use.
        {status: word for word, status in reversed(statuses.items()) if status not in statuses},
        {part.old: form for part in parts if (form := _form(raw, part, ask(SQL.latest_time, part.old)))},
        integer_ids,
        "",
        counts,
        tuple(type_ or "" for (type_,) in ask(SQL.found_types, column["type"].name)),
    )
    if reasons := reasons or list(_unfit(raw, plan)):
        raise refusal(reasons)
    changed = any(part.name != part.old for part in parts) or plan.shown or not plan.key.shared
    return plan._replace(view=options.table if options.table.lower() != TABLE else f"old_{TABLE}" if changed else "")


# Columns


def _may_be_seconds(column: Column) -> bool:
    return not column.declared or any(part in column.declared.upper() for part in ("INT", "REAL", "FLOA", "DOUB"))


def _assigned(
    table: Table, ours: Mapping[str, Column], renames: Mapping[str, str], integer_ids: bool, written: set[str]
) -> Iterator[Part]:
    """A Part for each old column. Raises InvalidOption for a wrong rename."""
    chosen, given = _chosen(table, ours, renames), {name.lower() for name in renames}
    for column in table.columns:
        name, lower = column.name, column.name.lower()
        new, aside = chosen.get(lower, name), f"old_{name}"
        model = ours.get(new.lower())
        if name == table.key:
            model = ours["id"]
            if new.lower() in (lower, "id"):
                new = name if integer_ids or lower != "id" else aside
        elif lower in _CLAIM and lower not in given:
            new, model = aside, None
        elif model is not None:
            new = aside if lower in ours and (model.name != lower or name in written) else name
        yield Part(column, new, model, proposed=lower not in given)


def _chosen(table: Table, ours: Mapping[str, Column], renames: Mapping[str, str]) -> dict[str, str]:
    """The new meaning or name of columns, by options or else by synonyms. Keys are in lower case."""
    chosen: dict[str, str] = {}
    for name, new in renames.items():
        problem = _misnamed(table, name, new, renames)
        if new.lower() in map(str.lower, chosen.values()):
            problem = f"another column becomes `{new}` already"
        if problem:
            raise InvalidOption(f"--rename {name}={new}: {problem}")
        chosen[name.lower()] = new.lower() if new.lower() in ours else new
    free = {c.name.lower() for c in table.columns if c.name.lower() not in chosen}
    have = {*chosen.values(), *free}
    for meaning, synonyms in _SYNONYMS.items():
        candidates = [name for name in synonyms if name in free and name != table.key.lower()]
        if meaning not in have and len(candidates) == 1:
            chosen[candidates[0]] = meaning
    return chosen


def _misnamed(table: Table, name: str, new: str, renames: Mapping[str, str]) -> str | None:
    """Why a column cannot become this."""
    column, other = table.column(name), table.column(new)
    if column is None:
        return f"the table has no column `{name}`{like(name, [each.name for each in table.columns])}"
    if other not in (None, column) and new.lower() not in map(str.lower, renames):
        return f"the table has a column `{new}` already; rename that one, too"
    if new.lower() in _CLAIM:
        return f"`{new}` holds the claims of job-supervisor's workers"
    if new.lower() in our_schema().columns and (column.name == table.key) != (new.lower() == "id"):
        return f"`{table.key}` is the primary key, and only that can be the id"
    return None


def _missing(parts: Sequence[Part], table: Table) -> Iterator[str]:
    there = {part.meaning: part for part in parts}
    for name in _NEEDED:
        if name not in there:
            similar = [part.old for part in parts if part.old.lower() in _SYNONYMS[name]]
            other = similar[0] if similar else "OTHER"
            yield f"it has no column `{name}`; if another one has this meaning, say so with --rename {other}={name}"
    for part in parts:
        if part.ours is not None and part.column.generated:
            yield f"its column `{part.old}` is generated"
        if part.old.lower() == "id" and part.meaning != "id":
            yield "its column `id` is not the primary key"
    for name, times in Counter(part.name.lower() for part in parts).items():
        if times > 1:
            yield f"two of its columns would be `{name}`; give one of them another name with --rename"
    if there["id"].name != table.key:
        for other, column, _ in table.pointing:
            yield f"{other}.{column} refers to its ids, which become integers; drop that foreign key first"


# Words

_OURS = frozenset(Status)


def _check_words(statuses: Mapping[str, str]) -> None:
    """Raises InvalidOption."""
    for word, status in statuses.items():
        if status not in _OURS:
            known = ", ".join(Status)
            raise InvalidOption(f"--status {word}={status}: {status} is not one of {known}{like(status, Status)}")
        if word in _OURS and word != status:
            raise InvalidOption(
                f"--status {word}={status}: job-supervisor writes `{word}` itself, with its own meaning"
            )


def _understood(
    found: Sequence[tuple[str | None, int]], column: Column, table: Table, given: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The meaning of each word of a state, and a reason for each one in the rows that nobody has explained.

    `found` are the words in the rows with their numbers, the most frequent first; before them come those in the
    column's DEFAULT and CHECK, and in constraints of the table about it.
    """
    about = [item for item in (column.item, *table.constraints) if column.name.lower() in item.names]
    counts, meanings, reasons = dict(found), dict[str, str](), list[str]()
    for word in dict.fromkeys([*(word for item in about for word in item.literals), *counts, *given]):
        plain = (word or "").strip().lower().replace(" ", "_")
        meaning = given.get(word or "") or _PROPOSED.get(plain)
        if word and meaning:
            meanings[word] = meaning
        elif word in counts:
            hint = f"; say what it means with --status {word}=pending" if word else ""
            rows = counted(counts[word], "row")
            reasons.append(f"`{column.name}` holds what job-supervisor cannot take: {_short(word)} ({rows}){hint}")
    return meanings, reasons


# Times as the application writes them


def _form(raw: sqlite3.Connection, part: Part, latest: Sequence[tuple[Any]]) -> str | None:
    """How to convert Unix seconds into the application's form; None if it writes seconds, or no times."""
    model = part.ours
    if model is None or not (model.is_time or model.name in AS_WRITTEN):
        return None
    if not latest and part.column.default is not None:
        latest = raw.execute(SQL.default_of.format(value=part.column.default)).fetchall()
    value = latest[0][0] if latest else None
    if isinstance(value, (int, float)):
        return "CAST(round({value} * 1000) AS INTEGER)" if value >= 1e11 else None
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None and (model.name in AS_WRITTEN or _may_be_seconds(part.column)):
        return None
    between, fraction, zone = (" ", None, None) if match is None else match.groups()
    zone = "+00:00" if zone not in (None, "Z") else zone or ""
    form = f"%Y-%m-%d{between}%H:%M:{'%f' if fraction else '%S'}{zone}"
    return f"strftime('{form}', CAST({{value}} AS REAL), 'unixepoch')"


# Values that no job can have


def _unfit(raw: sqlite3.Connection, plan: Plan) -> Iterator[str]:
    """Values that our columns must not have. NULL stands for the default if there is one."""
    for part in plan.parts:
        model = part.ours
        if model is None or model.name == "status" or (model.name == "id" and not plan.integer_ids):
            continue
        ours, types = model.name, f"typeof({model.name}) IN ({model.types})" if model.types else "1"
        wrong = f"{ours} IS NOT NULL AND NOT ({types} AND {model.check or 1})"
        if model.is_time:
            wrong = f"{ours} IS NULL AND shown IS NOT NULL AND shown <> ''"
        elif ours == "type":
            wrong = f"{ours} IS NULL OR {wrong}"
        elif not model.check:
            continue
        parts = {"column": quoted(part.old), "table": quoted(plan.table.name), "ours": ours, "wrong": wrong}
        rows = raw.execute(SQL.offending.format(value=plan.into(model, quoted(part.old)), **parts)).fetchall()
        if rows:
            listed = ", ".join(f"{_short(value)} ({counted(count, 'row')})" for value, count in rows)
            keep = f"--rename {part.old}=old_{part.old} would keep it as a column of your own"
            way_out = "a type is 1 to 100 characters of a-z A-Z 0-9 _ . : / -" if ours == "type" else keep
            yield f"`{part.old}` holds what job-supervisor cannot take: {listed}; {way_out}"


def _short(value: Any) -> str:
    text = "NULL" if value is None else repr(value)
    return text if len(text) <= 40 else text[:37] + "…"
