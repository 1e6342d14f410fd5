"""The command line: parses arguments and prints results. It contains no rules.

    program.py          the application: finds and runs a command
    options.py          options that many commands share, the database they select, and a command's answer
    errors.py           every failure as one readable line, with its exit code
    output.py           what goes to standard output: one JSON document, or text and tables for people
    tables.py           jobs, runs, times and schedules for people
    screen.py, live.py  `top`: the screen and its keys, and the terminal

Each command imports what it needs when it runs, so that `supervisor enqueue` starts quickly.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point of `supervisor`; `arguments` default to the process's own. Returns the exit code."""
    from supervisor.cli.errors import interrupted

    if arguments is None:
        # Imports create no garbage, and collecting takes a tenth of the start-up time. Long-running commands enable it.
        gc.disable()
    try:
        from supervisor.cli.program import run

        return run(arguments)
    except KeyboardInterrupt:
        return interrupted()
    finally:
        if arguments is None:
            gc.freeze()  # skip the interpreter's final collection, which would take as long again
