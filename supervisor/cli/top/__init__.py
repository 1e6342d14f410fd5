"""`supervisor top`: what `status` shows, live, with keys to pause, scale, retry and cancel.

live.py     the terminal, its keys and signals, and a thread that reads the database and performs actions
view.py     pools, workers and types as rows, what is selected, and what each key does; pure
screen.py   the whole screen; pure
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress

from click.exceptions import Exit

from supervisor.cli.errors import wrong_usage
from supervisor.cli.options import Target, on_target


@on_target
def top(target: Target) -> None:
    """Show everything live, with keys to control it.

    Pools, workers, types and their failures. ? lists the keys, q quits.
    """
    from supervisor.domain.errors import StoreBusy

    streams = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    if not streams or os.environ.get("TERM", "dumb") == "dumb":
        raise wrong_usage("top needs a terminal", "`supervisor status` or `status --json` prints the same once")
    engine = target.engine()
    # If the database cannot be used at the start, report it in a line with an exit code, as every other command does.
    with suppress(StoreBusy):
        engine.operations().close()
    from supervisor.cli.top.live import run

    gc.enable()  # the command line starts with it disabled
    raise Exit(run(engine))
