"""`adopt`: the plan for an application's table, and its execution."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from supervisor.cli.errors import wrong_usage
from supervisor.cli.options import AsJson, Target, on_target
from supervisor.cli.output import result
from supervisor.domain.errors import NothingToAdopt
from supervisor.domain.text import counted

if TYPE_CHECKING:
    from supervisor.store.base import AdoptedColumn, AdoptReport

_POOL_NAME = re.compile(r"[a-z0-9_-]{1,40}")
_MOST_POOLS = 20


@on_target
def adopt(
    target: Target,
    plan: Annotated[bool, typer.Option("--plan", help="Print the plan and change nothing.")] = False,
    table: Annotated[
        str, typer.Option("--table", metavar="NAME", help="The application's table. Default: jobs.", show_default=False)
    ] = "jobs",
    rename: Annotated[
        list[str] | None,
        typer.Option(
            "--rename",
            metavar="OLD=NEW",
            help="What a column is for a job, like scheduled_for=scheduled_at, or a name to keep it under; "
            "OLD=OLD keeps it as it is. May be repeated.",
            show_default=False,
        ),
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status",
            metavar="OLD=NEW",
            help="What a state of the application is, like processing=running. May be repeated.",
            show_default=False,
        ),
    ] = None,
    type_map: Annotated[
        list[str] | None,
        typer.Option(
            "--type-map", metavar="OLD=NEW", help="Another name for a type. May be repeated.", show_default=False
        ),
    ] = None,
    payload_column: Annotated[
        str | None,
        typer.Option("--payload-column", metavar="NAME", help="The same as --rename NAME=payload.", show_default=False),
    ] = None,
    view: Annotated[
        str,
        typer.Option(
            "--view",
            metavar="NAME",
            help="The view for statements in the old words. Default: old_jobs, if one is needed.",
            show_default=False,
        ),
    ] = "",
    statements: Annotated[
        Path | None,
        typer.Option(
            "--statements",
            metavar="FILE",
            help="The application's SQL statements, tried on the adopted table; each must end its line with ;",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Take over an existing jobs table.

    Prints a plan and carries it out in place and in one transaction, after a backup. Options change what it proposes.
    Other columns, indexes and triggers are kept. If the table cannot be taken over safely, the command fails and
    nothing is changed.
    """
    from supervisor.store.base import AdoptOptions

    renames = _pairs("--rename", rename or []) | ({payload_column: "payload"} if payload_column else {})
    options = AdoptOptions(
        table,
        renames,
        _pairs("--status", status or []),
        _pairs("--type-map", type_map or []),
        () if statements is None else tuple(_statements(statements)),
        view,
    )
    engine = target.engine()
    try:
        report = engine.database.adopt(options, rehearse=plan)
    except NothingToAdopt as error:
        result({"adopted": False, "reason": str(error)}, str(error), as_json=as_json)
        return
    hint = list(configuration(engine.url, report))
    told = asdict(report) | {"backup": None if report.backup is None else str(report.backup)}
    result(
        {"adopted": not plan} | told | {"configuration": "\n".join(hint)},
        *planned(engine.url, table, report),
        *happened(report),
        *("", "for supervisor.toml:", "", *hint),
        as_json=as_json,
    )


def _pairs(option: str, given: list[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        old, equals, new = text.partition("=")
        if not (equals and old and new):
            raise wrong_usage(f"{option} {text}: write OLD=NEW")
        if pairs.get(old, new) != new:
            raise wrong_usage(f"{option} {text}: {old} is {pairs[old]} already")
        pairs[old] = new
    return pairs


def _statements(file: Path) -> list[str]:
    from supervisor.store.migrate import statements

    try:
        return [statement.strip() for statement in statements(file.read_text(encoding="utf-8"))]
    except UnicodeDecodeError:
        raise wrong_usage(f"{file}: not UTF-8 text") from None
    except OSError as error:
        raise wrong_usage(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise wrong_usage(f"{file}: {error}") from None


# What is printed


def planned(url: str, table: str, report: AdoptReport) -> Iterator[str]:
    """The plan, line by line."""
    yield f"plan for {table} in {url}: {counted(report.rows, 'row')}"
    width = max(len(column.column) for column in report.columns)
    for column in report.columns:
        yield f"  {column.column:<{width}}  {_becomes(column)}{'' if not _is_news(column) else ' (proposed)'}"
    words = {word: status for word, status in report.statuses.items() if word != status}
    if words:
        yield "states: " + ", ".join(f"{word} = {status}" for word, status in words.items())
    if report.types:
        yield "types: " + ", ".join(f"{old} = {new}" for old, new in report.types.items())
    if report.recovered:
        yield f"{report.recovered} running {'becomes' if report.recovered == 1 else 'become'} pending"
    for note in report.notes:
        yield f"note: {note}"
    tried = len(report.going_on) + len(report.needing_change)
    yield f"{len(report.going_on)} of {tried} statements of such an application work as they are"
    for change in report.needing_change:
        instead = f"; works with {change.with_view} for {table}" if change.with_view else ""
        yield f"needs a change: {_short(change.statement)}: {change.reason}{instead}"


def happened(report: AdoptReport) -> Iterator[str]:
    """What was done; for a plan, that nothing was."""
    if report.backup is None:
        yield "nothing was changed; without --plan this is done, after a backup"
        return
    yield f"{counted(report.rows, 'row')} adopted; backup: {report.backup}"
    if report.recovered:
        yield f"{report.recovered} that were running are pending again"


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
        function = plain if plain[0].isalpha() else f"job_{plain}"
        yield ""
        yield f"[pools.{name}]"
        if name != type_:
            yield f"types = [{json.dumps(type_)}]"
        yield f'handler = "jobs:{function}"  # your function: module:function'
    if len(report.job_types) > _MOST_POOLS:
        yield ""
        yield "# and so on for the other types"
    if report.finished:
        yield ""
        yield "# By default, done jobs are deleted after 7 days and failed ones after 30: the old ones at the start."
        yield "[retention]"
        yield 'done = "forever"'
        yield 'failed = "forever"'


def _becomes(column: AdoptedColumn) -> str:
    if column.meaning is None:
        return "yours" if column.kept_as == column.column else f"yours, kept as {column.kept_as}"
    if column.kept_as.lower() == column.meaning:
        return "as it is" if column.column.lower() == column.meaning else f"is {column.meaning}"
    if column.meaning == "id":
        return f"kept as {column.kept_as}, beside a new integer id"
    if column.kept_as == column.column:
        return f"read into {column.meaning}; both are kept equal"
    return f"read into {column.meaning}; the original is kept as {column.kept_as}"


def _is_news(column: AdoptedColumn) -> bool:
    return column.proposed and (column.kept_as != column.column or column.meaning not in (None, column.column.lower()))


def _short(statement: str) -> str:
    return " ".join(statement.split()).rstrip("; ")
