"""`top`: the live view."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress

import typer

from supervisor.cli.errors import wrong_usage
from supervisor.cli.options import Target, on_target


@on_target
def top(target: Target) -> None:
    """Show everything live, with keys to control it.

    Pools, workers, types and their failures. ? lists the keys, q quits.
    """
    from supervisor.domain.errors import StoreBusy

    if not _on_terminal():
        raise wrong_usage("top needs a terminal", "`supervisor status` or `status --json` prints the same once")
    engine = target.engine()
    # If the database cannot be used at the start, report it in a line with an exit code, as every other command does.
    with suppress(StoreBusy):
        engine.operations().close()
    from supervisor.cli.top.loop import run

    gc.enable()  # the command line starts with it disabled
    raise typer.Exit(run(engine))


def _on_terminal() -> bool:
    streams = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    return streams and os.environ.get("TERM", "dumb") != "dumb"
