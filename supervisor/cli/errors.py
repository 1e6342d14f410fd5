"""Reports every failure as one line on standard error, with an optional hint, and returns its exit code."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from supervisor.cli.output import note
from supervisor.domain.errors import ConfigError, Conflict, InvalidJob, InvalidOption, QueueError, StoreError

if TYPE_CHECKING:
    import click

FAILED = 1
USAGE = 2
DATABASE = 3
CONFLICT = 4
INTERRUPTED = 130  # what shells report for a program that was ended by Ctrl-C
TRACEBACK = "SUPERVISOR_TRACEBACK"


class Stop(Exception):
    """End the command with this line, hint and exit code."""

    def __init__(self, message: str, *, code: int = FAILED, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


# The first match counts. An unknown id is a plain failure: it does not conflict with a job's state.
_CODES: tuple[tuple[type[QueueError], int], ...] = (
    *((kind, USAGE) for kind in (ConfigError, InvalidJob, InvalidOption)),
    (StoreError, DATABASE),
    (Conflict, CONFLICT),
    (QueueError, FAILED),
)


def wrong_usage(message: str, hint: str = "") -> Stop:
    return Stop(message, code=USAGE, hint=hint)


def report(error: Exception) -> int:
    """Print what went wrong and return the exit code."""
    if isinstance(error, OSError):
        what = error.strerror or str(error)
        return _say([what if error.filename is None else f"{error.filename}: {what}"], FAILED)
    hint = getattr(error, "hint", "") or " ".join(getattr(error, "__notes__", ()))
    if isinstance(error, Stop):
        return _say([str(error)], error.code, hint)
    for kind, code in _CODES:
        if isinstance(error, kind):
            return _say(error.problems if isinstance(error, ConfigError) else [str(error)], code, hint)
    # A bug in this program: also one line, with a way to see more.
    if os.environ.get(TRACEBACK):
        raise error
    message = f"unexpected {type(error).__name__}: {error}"
    return _say([message], FAILED, f"please report this; {TRACEBACK}=1 shows where it happened")


def report_usage(error: click.UsageError) -> int:
    """Report a usage error from the command-line parser."""
    hint = "" if error.ctx is None else f"{error.ctx.command_path} --help"
    message = " ".join(error.format_message().split()).rstrip(".")
    return _say([message[:1].lower() + message[1:]], USAGE, hint)


def interrupted() -> int:
    note("interrupted")
    return INTERRUPTED


def _say(messages: list[str], code: int, hint: str = "") -> int:
    for message in messages:
        note(f"error: {message}")
    if hint:
        note(f"hint: {hint}")
    return code
