"""`purge`, `migrate`, `backup` and `restore`: maintenance of the database."""

from __future__ import annotations

from pathlib import Path

import click

from supervisor.cli.errors import wrong_usage
from supervisor.cli.jobs import state_of
from supervisor.cli.options import DURATION, Answer, Target, answering, ask, confirm, flag, only_type, option, yes
from supervisor.cli.output import write
from supervisor.domain.errors import Conflict
from supervisor.domain.job import Status
from supervisor.domain.text import counted, human_size, without_password

in_file = click.argument("file", type=click.Path(path_type=Path))


@answering
@option("--older-than", "The minimum time since the job finished, like 7d.", "DURATION", type=DURATION, required=True)
@state_of("delete", "Only jobs in this state; may be repeated. Default: all finished jobs.", multiple=True)
@only_type
@yes
def purge(target: Target, older_than: float, status: tuple[str, ...], type: str | None, yes: bool) -> Answer:
    """Delete old finished jobs."""
    from supervisor.ops import commands
    from supervisor.store.base import Filter

    which = commands.meant("delete", Filter(tuple(map(Status, status)), (type,) if type else ()))
    with target.operations() as operations:
        ids = operations.jobs.ids(which._replace(finished_before=operations.statistics.now() - older_than))
        confirm("delete", len(ids), yes=yes)
        deleted = operations.actions.delete(ids)
    return Answer({"deleted": deleted}, f"{counted(deleted, 'job')} deleted")


@answering
@flag("--print script", "Print the SQL that would be run, for PostgreSQL, and change nothing.")
def migrate(target: Target, script: bool) -> Answer:
    """Bring the job tables up to date.

    Creates missing tables. Before an older schema of an SQLite file is changed, the file is backed up.
    """
    from supervisor.engine import open_engine

    engine = open_engine(target.url())
    if script:
        sql = engine.database.script()
        return Answer({"sql": sql}, show=lambda: write(sql or "-- up to date\n"))
    applied = engine.database.migrate()
    done = f"applied migrations {', '.join(map(str, applied))}" if applied else "up to date"
    shown = without_password(engine.url)
    return Answer({"database": shown, "applied": applied}, f"{shown}: {done}")


@answering
@in_file
def backup(target: Target, file: Path) -> Answer:
    """Copy the database to a new file while it is in use."""
    if file.exists():
        raise Conflict(f"{file}: already exists; a backup never overwrites a file")
    if not file.absolute().parent.is_dir():
        raise wrong_usage(f"{file}: no such folder")
    target.engine().database.back_up(file)
    size = file.stat().st_size
    return Answer({"file": str(file), "bytes": size}, f"{file}: {human_size(size)}")


@answering
@in_file
@yes
def restore(target: Target, file: Path, yes: bool) -> Answer:
    """Replace the database with a copy made by `supervisor backup`.

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
    lines = [f"{engine.url}: {counted(report.jobs, 'job')} of {file}", *([f"the old database: {kept}"] if kept else [])]
    return Answer({"database": engine.url, "jobs": report.jobs, "schema": report.schema, "kept": kept}, *lines)
