"""`schedules`: list, pause, resume and run them."""

from __future__ import annotations

import click

from supervisor.cli.options import Target, as_json, group, on_target
from supervisor.cli.output import document, line, result, show

named = click.argument("name")


@on_target
@as_json
def list_schedules(target: Target, as_json: bool) -> None:
    """List schedules and when they fire next."""
    from supervisor.cli import tables
    from supervisor.cli.output import table
    from supervisor.ops.views import schedules_of

    with target.operations() as operations:
        now = operations.statistics.now()
        views = schedules_of(operations.schedules.planned(), now)
    if as_json:
        document(views)
    elif views:
        show(table(tables.OF_SCHEDULES, tables.of_schedules(views, now)))
    else:
        line("there are no schedules; tables [[schedules]] of the configuration define them")


@on_target
@named
@as_json
def pause(target: Target, name: str, as_json: bool) -> None:
    """Stop a schedule from firing."""
    _set(target, name, paused=True, as_json=as_json)


@on_target
@named
@as_json
def resume(target: Target, name: str, as_json: bool) -> None:
    """Let a paused schedule fire again.

    The times that it has missed are handled according to its `misfire`.
    """
    _set(target, name, paused=False, as_json=as_json)


def _set(target: Target, name: str, *, paused: bool, as_json: bool) -> None:
    from supervisor.ops import commands

    with target.operations() as operations:
        changed = commands.pause_schedule(operations, name, paused, operations.statistics.now())
    done, unchanged = ("is paused", "was already paused") if paused else ("is resumed", "was not paused")
    text = f"the schedule {name} {done if changed else unchanged}"
    result({"name": name, "paused": paused, "changed": changed}, text, as_json=as_json)


@on_target
@named
@as_json
def run(target: Target, name: str, as_json: bool) -> None:
    """Enqueue the job of a schedule now.

    The next time of the schedule stays. A paused schedule can be run, too.
    """
    from supervisor.ops import commands

    with target.operations() as operations:
        job_id = commands.run_schedule(operations, name, operations.statistics.now())
    result({"id": job_id}, str(job_id), as_json=as_json)


schedules = group(
    "List, pause, resume, run schedules.", {"list": list_schedules, "pause": pause, "resume": resume, "run": run}
)
