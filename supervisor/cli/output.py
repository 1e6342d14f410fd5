"""What goes to standard output: one JSON document, or text for people; and lines on standard error."""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from supervisor.domain.json_safe import json_safe
from supervisor.domain.printable import clean, clean_lines

if TYPE_CHECKING:
    from rich.console import RenderableType

_WIDTH = 120  # columns where there is no terminal


class ReaderGone(Exception):
    """The reader of standard output has closed it."""


def prepare() -> None:
    """Make the standard streams safe to write to, whatever the locale and their target."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller, as in `supervisor status >&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123 - for as long as we live
        else:
            with suppress(OSError, ValueError):  # a stream that was replaced by the caller
                if stream.fileno() == descriptor:
                    stream.reconfigure(errors="backslashreplace")


def write(text: str) -> None:
    """Write to standard output and flush. Raises ReaderGone, or OSError if the disk is full."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGone from None


def line(text: object) -> None:
    """Print one line; line breaks in the text are escaped."""
    write(clean(text) + "\n")


def lines(text: object) -> None:
    """Print a text of several lines, indented."""
    write(clean_lines(text) + "\n")


def document(value: Any) -> None:
    """Print one JSON document."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    write(json.dumps(json_safe(value), ensure_ascii=not unicode, allow_nan=False, indent=2) + "\n")


def compact(value: Any) -> str:
    """A stored value as JSON in one line, for people."""
    return clean(json.dumps(json_safe(value), ensure_ascii=False, allow_nan=False))


def note(text: str) -> None:
    """A line on standard error, for people."""
    try:
        sys.stderr.write(clean(text, " ") + "\n")
        sys.stderr.flush()
    except OSError:
        return  # no stream is left to report it on


def show(*renderables: RenderableType) -> None:
    """Print tables and text for people, as wide as the terminal."""
    import io

    from rich.console import Console

    terminal = sys.stdout.isatty()
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        force_terminal=terminal,
        width=shutil.get_terminal_size((_WIDTH, 24)).columns,
        markup=False,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )
    for renderable in renderables:
        console.print(renderable)
    write("".join(text.rstrip() + "\n" for text in buffer.getvalue().splitlines()))


def silence() -> None:
    """Standard output has no reader any more: writing the rest of its buffer must not fail at exit."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError):
        return
