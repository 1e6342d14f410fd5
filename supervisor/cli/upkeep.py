"""`purge`, `migrate`, `adopt`, `backup` and `restore`: maintenance of the database."""

from __future__ import annotations

import enum
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from supervisor.cli.errors import wrong_usage
from supervisor.cli.options import AsJson, OnlyType, Target, Yes, confirm, on_target
from supervisor.cli.output import result
from supervisor.domain.duration import human_size
from supervisor.domain.errors import Conflict
from supervisor.domain.job import Status
from supervisor.domain.text import counted

if TYPE_CHECKING:
    from supervisor.store.base import AdoptReport


class Finished(enum.StrEnum):
    """The states that `purge` accepts."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    QUARANTINED = "quarantined"


@on_target
def purge(
    target: Target,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="DURATION", help="The minimum time since the job finished, like 7d.")
    ],
    status: Annotated[
        list[Finished] | None,
        typer.Option(
            "--status",
            metavar=f"<{'|'.join(Finished)}>",
            help="Only jobs in this state; may be repeated. Default: all finished jobs.",
            show_default=False,
        ),
    ] = None,
    type: OnlyType = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete old finished jobs."""
    from supervisor.ops import commands

    statuses = [Status(state) for state in status or ()]
    which = commands.purgeable(older_than, statuses, type, time.time())
    with target.operations() as operations:
        ids = operations.jobs.ids(which)
        confirm("delete", len(ids), yes=yes)
        deleted = operations.actions.delete(ids)
    result({"deleted": deleted}, f"{counted(deleted, 'job')} deleted", as_json=as_json)


@on_target
def migrate(target: Target, as_json: AsJson = False) -> None:
    """Bring the job tables up to date.

    Creates missing tables. Before an older schema is changed, the database is backed up.
    """
    from supervisor.engine import open_engine

    engine = open_engine(target.url())
    applied = engine.database.migrate()
    done = f"applied migrations {', '.join(map(str, applied))}" if applied else "up to date"
    result({"database": engine.url, "applied": applied}, f"{engine.url}: {done}", as_json=as_json)


@on_target
def adopt(
    target: Target,
    payload_column: Annotated[
        str | None,
        typer.Option("--payload-column", metavar="NAME", help="The column that holds the payload.", show_default=False),
    ] = None,
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

    Works in place and in one transaction, after a backup. Other columns, indexes and triggers are kept. If the
    table cannot be taken over safely, the command fails and nothing is changed.
    """
    tried = () if statements is None else _statements(statements)
    report = target.engine().database.adopt(payload_column=payload_column, statements=tried)
    result(asdict(report) | {"backup": str(report.backup)}, *_adoption(report), as_json=as_json)


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


def _adoption(report: AdoptReport) -> Iterator[str]:
    yield f"{counted(report.rows, 'row')} adopted; backup: {report.backup}"
    if report.recovered:
        yield f"{report.recovered} that were running are pending again"
    if report.extra_columns:
        yield f"kept: {', '.join(report.extra_columns)}"
    for note in report.notes:
        yield f"note: {note}"
    for change in report.needing_change:
        yield f"needs a change: {' '.join(change.statement.split()).rstrip('; ')}: {change.reason}"


@on_target
def backup(
    target: Target,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to create.")],
    as_json: AsJson = False,
) -> None:
    """Copy the database while it is in use."""
    if file.exists():
        raise Conflict(f"{file}: already exists; a backup never overwrites a file")
    if not file.absolute().parent.is_dir():
        raise wrong_usage(f"{file}: no such folder")
    engine = target.engine()
    engine.database.back_up(file)
    size = file.stat().st_size
    result({"file": str(file), "bytes": size}, f"{file}: {human_size(size)}", as_json=as_json)


@on_target
def restore(
    target: Target,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A copy made by `supervisor backup`.")],
    as_json: AsJson = False,
) -> None:
    """Replace the database with a backup.

    No process may be using the database. The copy is checked first; the old database is kept beside the new one.
    """
    from supervisor.engine import open_engine

    if not file.is_file():
        raise wrong_usage(f"{file}: it is a folder, not a file" if file.is_dir() else f"{file}: no such file")
    engine = open_engine(target.url())
    if engine.database.exists() and file.samefile(engine.url.partition("///")[2]):
        raise wrong_usage(f"{file}: this is the database itself")
    report = engine.database.restore(file)
    kept = None if report.kept is None else str(report.kept)
    texts = [f"{engine.url}: {counted(report.jobs, 'job')} of {file}"]
    if kept is not None:
        texts.append(f"the old database: {kept}")
    told = {"database": engine.url, "jobs": report.jobs, "schema": report.schema, "kept": kept}
    result(told, *texts, as_json=as_json)
