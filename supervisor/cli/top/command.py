"""`top`: the live view."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress

import typer

from supervisor.cli.errors import wrong_usage
from supervisor.cli.options import ConfigFile, DatabaseUrl, Target


def top(context: typer.Context, config: ConfigFile = None, database: DatabaseUrl = None) -> None:
    """Show everything live, with keys to control it.

    Pools, workers, types and their failures. ? lists the keys, q quits.
    """
    from supervisor.domain.errors import StoreBusy

    if not _on_terminal():
        raise wrong_usage("top needs a terminal", "`supervisor status`, or `status --json`, prints the same once")
    engine = Target.of(context, config, database).engine()
    # What is wrong with the database from the start is a line and an exit code, as with every other command.
    with suppress(StoreBusy):
        engine.operations().close()
    from supervisor.cli.top.loop import run

    gc.enable()  # the command line starts without
    raise typer.Exit(run(engine))


def _on_terminal() -> bool:
    streams = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    return streams and os.environ.get("TERM", "dumb") != "dumb"
