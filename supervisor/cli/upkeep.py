"""`purge`, `migrate`, `backup` and `restore`: maintenance of the database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from supervisor.cli.errors import wrong_usage
from supervisor.cli.jobs import state_of
from supervisor.cli.options import AsJson, OnlyType, Target, Yes, ask, confirm, on_target, option
from supervisor.cli.output import document, result, write
from supervisor.domain.errors import Conflict
from supervisor.domain.job import Status
from supervisor.domain.text import counted, human_size, seconds, without_password


@on_target
def purge(
    target: Target,
    older_than: Annotated[
        float, option("--older-than", "The minimum time since the job finished, like 7d.", "DURATION", parse=seconds)
    ],
    status: Annotated[
        list[Status] | None,
        state_of("delete", "Only jobs in this state; may be repeated. Default: all finished jobs."),
    ] = None,
    type: OnlyType = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete old finished jobs."""
    from supervisor.ops import commands
    from supervisor.store.base import Filter

    which = commands.meant("delete", Filter(tuple(status or ()), (type,) if type else ()))
    with target.operations() as operations:
        ids = operations.jobs.ids(which._replace(finished_before=operations.statistics.now() - older_than))
        confirm("delete", len(ids), yes=yes)
        deleted = operations.actions.delete(ids)
    result({"deleted": deleted}, f"{counted(deleted, 'job')} deleted", as_json=as_json)


@on_target
def migrate(
    target: Target,
    script: Annotated[
        bool, option("--print", "Print the SQL that would be run, for PostgreSQL, and change nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Bring the job tables up to date.

    Creates missing tables. Before an older schema of an SQLite file is changed, the file is backed up.
    """
    from supervisor.engine import migration_script, open_engine

    if script:
        sql = migration_script(target.url())
        if as_json:
            document({"sql": sql})
        else:
            write(sql or "-- up to date\n")
        return
    engine = open_engine(target.url())
    applied = engine.database.migrate()
    done = f"applied migrations {', '.join(map(str, applied))}" if applied else "up to date"
    shown = without_password(engine.url)
    result({"database": shown, "applied": applied}, f"{shown}: {done}", as_json=as_json)


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
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Replace the database with a backup.

    No process may be using the database. The copy is checked first; the old database is kept beside the new one.
    Asks first if there is a database.
    """
    from supervisor.engine import open_engine

    if not file.is_file():
        raise wrong_usage(f"{file}: it is a folder, not a file" if file.is_dir() else f"{file}: no such file")
    engine = open_engine(target.url())
    if engine.database.exists():
        if engine.database.file is not None and file.samefile(engine.database.file):
            raise wrong_usage(f"{file}: this is the database itself")
        ask(f"replace {without_password(engine.url)} with {file}", yes=yes)
    report = engine.database.restore(file)
    kept = None if report.kept is None else str(report.kept)
    texts = [f"{engine.url}: {counted(report.jobs, 'job')} of {file}", *([f"the old database: {kept}"] if kept else [])]
    told = {"database": engine.url, "jobs": report.jobs, "schema": report.schema, "kept": kept}
    result(told, *texts, as_json=as_json)
