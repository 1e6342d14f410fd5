"""The command line: parses and prints, decides nothing.

    program.py    the commands put together, and how a run of one ends
    options.py    options that many commands share, and the database they mean
    errors.py     every failure as one readable line, with its exit code
    output.py     what goes to standard output: one JSON document, or text for people
    tables.py     words, times and columns for people

Each command lives in the file of its concern and imports what it needs when it runs, so that
`supervisor enqueue` starts quickly.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point of `supervisor`; `arguments` default to the process's own. Returns the exit code."""
    from supervisor.cli.errors import INTERRUPTED, interrupted

    if arguments is None:
        # Imports make no garbage, and looking for it takes a tenth of the start; what runs for long enables it.
        gc.disable()
    try:
        from supervisor.cli.program import run

        return run(arguments)
    except KeyboardInterrupt:
        interrupted()
        return INTERRUPTED
    finally:
        if arguments is None:
            gc.freeze()  # the interpreter looks for garbage once more before it ends: that would take as long again
