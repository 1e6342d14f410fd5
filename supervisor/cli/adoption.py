"""`adopt`: the plan for an application's table, and its execution."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from supervisor.cli.errors import wrong_usage
from supervisor.cli.options import Target, as_json, flag, on_target, option
from supervisor.cli.output import result
from supervisor.domain.errors import NothingToAdopt
from supervisor.domain.text import counted

if TYPE_CHECKING:
    from supervisor.store.base import AdoptedColumn, AdoptReport

_POOL_NAME = re.compile(r"[a-z0-9_-]{1,40}")
_MOST_POOLS = 20
_RETENTION = (
    "",
    "# By default, done jobs are deleted after 7 days and failed ones after 30: the old ones at the start.",
    "[retention]",
    'done = "forever"',
    'failed = "forever"',
)


@on_target
@flag("--plan", "Print the plan and change nothing.")
@option("--table", "The application's table. Default: jobs.", "NAME", default="jobs")
@option(
    "--rename",
    "What a column is for a job, like scheduled_for=scheduled_at, or a name to keep it under; "
    "OLD=OLD keeps it as it is. May be repeated.",
    "OLD=NEW",
    multiple=True,
)
@option(
    "--status",
    "What a state of the application is, like processing=running. May be repeated.",
    "OLD=NEW",
    multiple=True,
)
@as_json
def adopt(target: Target, plan: bool, table: str, rename: Sequence[str], status: Sequence[str], as_json: bool) -> None:
    """Take over an existing jobs table.

    Prints a plan and carries it out in place and in one transaction, after a backup. Options change what it proposes.
    Other columns, indexes and triggers are kept. If the table cannot be taken over safely, the command fails and
    nothing is changed.
    """
    from supervisor.store.base import AdoptOptions

    options = AdoptOptions(table, _pairs("--rename", rename), _pairs("--status", status))
    engine = target.engine()
    try:
        report = engine.database.adopt(options, rehearse=plan)
    except NothingToAdopt as error:
        result({"adopted": False, "reason": str(error)}, str(error), as_json=as_json)
        return
    hint = list(configuration(engine.url, report))
    told = report._asdict() | {"backup": None if report.backup is None else str(report.backup)}
    result(
        {"adopted": not plan} | told | {"configuration": "\n".join(hint)},
        *_lines(engine.url, table, report),
        *("", "for supervisor.toml:", "", *hint),
        as_json=as_json,
    )


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        old, equals, new = text.partition("=")
        if not (equals and old and new):
            raise wrong_usage(f"{option} {text}: write OLD=NEW")
        if pairs.get(old, new) != new:
            raise wrong_usage(f"{option} {text}: {old} is {pairs[old]} already")
        pairs[old] = new
    return pairs


# What is printed


def _lines(url: str, table: str, report: AdoptReport) -> Iterator[str]:
    """The plan, and whether it was carried out."""
    yield f"plan for {table} in {url}: {counted(report.rows, 'row')}"
    width = max(len(column.column) for column in report.columns)
    for column in report.columns:
        yield f"  {column.column:<{width}}  {_becomes(column)}"
    words = {word: status for word, status in report.statuses.items() if word != status}
    if words:
        yield "states: " + ", ".join(f"{word} = {status}" for word, status in words.items())
    if report.recovered:
        yield f"{report.recovered} running {'becomes' if report.recovered == 1 else 'become'} pending"
    for note in report.notes:
        yield f"note: {note}"
    if report.backup is None:
        yield "nothing was changed; without --plan this is done, after a backup"
    else:
        yield f"{counted(report.rows, 'row')} adopted; backup: {report.backup}"


def configuration(url: str, report: AdoptReport) -> Iterator[str]:
    """A beginning of supervisor.toml: a pool for each type in the table."""
    yield f"database = {json.dumps(url)}"
    taken: set[str] = set()
    for type_ in report.job_types[:_MOST_POOLS] or ("TYPE",):
        plain = re.sub(r"[^a-z0-9]+", "_", type_.lower()).strip("_")[:40] or "work"
        name = type_ if _POOL_NAME.fullmatch(type_) else plain
        while name in taken:
            name += "_"
        taken.add(name)
        types = [] if name == type_ else [f"types = [{json.dumps(type_)}]"]
        function = plain if plain[0].isalpha() else f"job_{plain}"
        handler = f'handler = "jobs:{function}"  # your function: module:function'
        yield from ("", f"[pools.{name}]", *types, handler)
    if len(report.job_types) > _MOST_POOLS:
        yield from ("", "# and so on for the other types")
    if report.finished:
        yield from _RETENTION


def _becomes(column: AdoptedColumn) -> str:
    kept, meaning = column.kept_as, column.meaning
    if meaning is None:
        told = "yours" if kept == column.column else f"yours, kept as {kept}"
    elif kept.lower() == meaning:
        told = "as it is" if column.column.lower() == meaning else f"is {meaning}"
    elif meaning == "id":
        told = f"kept as {kept}, beside a new integer id"
    elif kept == column.column:
        told = f"read into {meaning}; both are kept equal"
    else:
        told = f"kept as {kept}, and read into {meaning}; both are kept equal"
    news = kept != column.column or meaning not in (None, column.column.lower())
    return f"{told} (proposed)" if column.proposed and news else told
