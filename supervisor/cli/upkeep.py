"""`purge`, `migrate`, `adopt` and `backup`: the care of the database."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from supervisor.cli.errors import wrong_usage
from supervisor.cli.options import AsJson, ConfigFile, DatabaseUrl, OnlyType, Target, Yes, confirm
from supervisor.cli.output import document, line
from supervisor.domain.job import Status


def register(app: typer.Typer) -> None:
    for command in (purge, migrate, backup):
        app.command()(command)


def purge(
    context: typer.Context,
    older_than: Annotated[str, typer.Option("--older-than", metavar="DURATION", help="Like 7d.")],
    status: Annotated[
        list[Status] | None,
        typer.Option("--status", help="Only these; may be repeated. Default: all finished.", show_default=False),
    ] = None,
    type: OnlyType = None,
    yes: Yes = False,
    config: ConfigFile = None,
    database: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete jobs that finished long ago."""
    from supervisor import operating

    which = operating.purgeable(older_than, status or (), type, time.time())
    with Target.of(context, config, database).operations() as operations:
        ids = operations.ids(which)
        confirm("delete", len(ids), yes=yes)
        deleted = operations.delete(ids)
    if as_json:
        document({"deleted": deleted})
    else:
        line(f"{deleted} {'job' if deleted == 1 else 'jobs'} deleted")


def migrate(
    context: typer.Context,
    config: ConfigFile = None,
    database: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Bring the job tables up to date.

    Creates them where there are none; an older schema is backed up first.
    """
    from supervisor.engine import open_engine

    engine = open_engine(Target.of(context, config, database).url())
    applied = engine.migrate()
    if as_json:
        document({"database": engine.url, "applied": applied})
    elif applied:
        line(f"{engine.url}: applied migrations {', '.join(map(str, applied))}")
    else:
        line(f"{engine.url}: up to date")


def backup(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")],
    config: ConfigFile = None,
    database: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Copy the database while it is in use."""
    if file.exists():
        raise wrong_usage(f"{file}: it exists already; a backup never overwrites a file")
    if not file.absolute().parent.is_dir():
        raise wrong_usage(f"{file}: there is no such folder")
    engine = Target.of(context, config, database).engine()
    engine.back_up(file)
    size = file.stat().st_size
    if as_json:
        document({"file": str(file), "bytes": size})
    else:
        from supervisor.domain.duration import human_size

        line(f"{file}: {human_size(size)}")
