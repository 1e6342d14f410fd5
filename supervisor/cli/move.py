"""`move`: takes the jobs of a database to one of another engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from supervisor.cli import tables
from supervisor.cli.errors import FAILED, wrong_usage
from supervisor.cli.options import as_json, flag
from supervisor.cli.output import result
from supervisor.domain.text import counted

if TYPE_CHECKING:
    from supervisor.ops.move import MoveReport

_MOST_LISTED = 20


@click.command()
@click.argument("source")
@click.argument("target")
@flag("--plan", "Say what would be moved and change nothing.")
@flag("--leave-columns", "Leave columns of your application's own behind.")
@flag("--abandon", "Give up a move that is not complete: SOURCE takes jobs again.")
@as_json
def move(source: str, target: str, plan: bool, leave_columns: bool, abandon: bool, as_json: bool) -> None:
    """Move all jobs from SQLite to PostgreSQL, or back.

    Each is a file or a URL. The source takes no more jobs from then on, and names the new URL in the end. A move that
    was interrupted is repeated. No supervisor may be running on either database.
    """
    from supervisor.ops import move as moving

    here, there = _url(source), _url(target)
    if abandon:
        moving.abandon(here, there)
        result({"abandoned": True}, f"{source} takes jobs again", as_json=as_json)
        return
    report = moving.plan(here, there) if plan else moving.move(here, there, leave_columns=leave_columns)
    result(asdict(report) | {"moved": not plan}, *_lines(report, planned=plan), as_json=as_json)
    if report.set_aside and not plan:
        raise Exit(FAILED)


def _url(given: str) -> str:
    """A path is that of an SQLite file."""
    from supervisor.config.checks import absolute

    try:
        return absolute(given if ":" in given else f"sqlite:///{given}", Path())
    except ValueError as error:
        raise wrong_usage(str(error)) from None


def _lines(report: MoveReport, *, planned: bool) -> Iterator[str]:
    yield f"{'plan: ' if planned else ''}{report.source} to {report.target}"
    if report.moved_at is not None:
        yield (
            f"already moved at {tables.when(report.moved_at)}; nothing was compared or changed now, and these are the "
            "rows of that time:"
        )
    width = max(map(len, report.rows))
    yield from (f"  {table:<{width}}  {counted(rows, 'row')}" for table, rows in report.rows.items() if rows)
    if report.left_columns:
        yield f"columns that stay behind: {', '.join(report.left_columns)}"
    if report.set_aside:
        yield f"{counted(report.set_aside, 'row')} cannot be stored in the target; they stay in {report.source}:"
        yield from (f"  {row}" for row in report.aside[:_MOST_LISTED])
        if report.set_aside > _MOST_LISTED:
            yield f"  and {report.set_aside - _MOST_LISTED} more; --json lists up to 1,000"
    if planned and report.moved_at is None:
        yield from (f"supervisor {one} is running on the source: stop it before the move" for one in report.running)
        yield "nothing was changed"
        return
    if report.moved_at is None:
        yield "every row was read back from the target, and all were counted; the source takes no more jobs"
    yield f"for supervisor.toml: database = {json.dumps(report.target)}"
