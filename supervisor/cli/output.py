"""What goes to standard output: one JSON document, or text for people; and lines on standard error."""

from __future__ import annotations

import json
import os
import select
import sys
from contextlib import suppress
from typing import Any

from supervisor.domain.text import clean, clean_lines, json_safe


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


def json_line(value: Any) -> None:
    """Print one JSON document in one line, where several follow each other."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    write(json.dumps(json_safe(value), ensure_ascii=not unicode, allow_nan=False) + "\n")


def rest(seconds: float) -> None:
    """Wait before more is printed. Raises ReaderGone if nobody reads it any more."""
    gone = select.poll()
    with suppress(OSError, ValueError):  # a stream that was replaced by the caller
        gone.register(sys.stdout.fileno(), 0)  # only errors: the other end of a pipe was closed
    if gone.poll(seconds * 1000):
        raise ReaderGone


def result(value: Any, *texts: str, as_json: bool) -> None:
    """What a command has done: the value as JSON, or these lines for people."""
    if as_json:
        document(value)
    else:
        for text in texts:
            line(text)


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


def show(*blocks: str) -> None:
    """Print tables and headings."""
    write("".join(f"{block}\n" for block in blocks))


def silence() -> None:
    """Standard output has no reader any more: writing the rest of its buffer must not fail at exit."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError):
        return
