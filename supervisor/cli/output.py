"""What goes to standard output: one JSON document, or text and tables for people; and lines on standard error.

Rich could draw the tables, but takes longer to import than most commands take to run.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from supervisor.domain.text import MAX_CELL, MAX_VALUE, clean, clean_lines, json_safe

COLOURS = {
    "done": "green", "running": "cyan", "failed": "red", "quarantined": "magenta", "cancelled": "yellow",
    "ok": "green", "note": "cyan", "warning": "yellow", "fault": "red",
}  # fmt: skip
_CODES = {"bold": 1, "red": 31, "green": 32, "yellow": 33, "magenta": 35, "cyan": 36}
_WIDTH = 120  # columns where there is no terminal
_GAP = "  "
_LEAST = 12  # cells that the last column keeps, if it has as much to say


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


def silence() -> None:
    """Standard output has no reader any more: writing the rest of its buffer must not fail at exit."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def rest(seconds: float) -> None:
    """Wait before more is printed. Raises ReaderGone if nobody reads it any more."""
    gone = select.poll()
    with suppress(OSError, ValueError):  # a stream that was replaced by the caller
        gone.register(sys.stdout.fileno(), 0)  # only errors: the other end of a pipe was closed
    if gone.poll(seconds * 1000):
        raise ReaderGone


def note(text: str) -> None:
    """A line on standard error, for people."""
    with suppress(OSError):  # no stream is left to report it on
        sys.stderr.write(clean(text, " ") + "\n")
        sys.stderr.flush()


def line(text: object) -> None:
    """Print one line; line breaks in the text are escaped."""
    write(clean(text) + "\n")


def lines(text: object) -> None:
    """Print a text of several lines, indented."""
    write(clean_lines(text) + "\n")


def show(*blocks: str) -> None:
    """Print tables and headings."""
    write("".join(f"{block}\n" for block in blocks))


def document(value: Any, *, indent: int | None = 2) -> None:
    """Print one JSON document, in one line without `indent`."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    write(json.dumps(json_safe(value), ensure_ascii=not unicode, allow_nan=False, indent=indent) + "\n")


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


def heading(text: str) -> str:
    return f"\n{_styled(clean(text), 'bold')}"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, wrap: bool = False) -> str:
    """A table with its column names in capitals. A name that ends in > is aligned to the right.

    The last column takes the remaining width. Longer text is cut, or wrapped with `wrap`. Without enough room, the
    widest of the other columns are cut, too.
    """
    limit = MAX_VALUE if wrap else MAX_CELL
    right = [name.endswith(">") for name in columns[:-1]]
    names = [name.rstrip(">").upper() for name in columns]
    cells = [names, *([clean(value, limit=limit) for value in row] for row in rows)]
    *widths, last = (max(map(_cells, column)) for column in zip(*cells, strict=True))
    room = _columns() - len(_GAP) * len(widths)
    while sum(widths) + min(last, _LEAST) > room and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    last = max(1, room - sum(widths))
    indent = " " * (sum(widths) + len(_GAP) * len(widths))
    printed = []
    for row in cells:
        styles = ["bold"] * len(row) if row is names else [COLOURS.get(cell, "") for cell in row]
        before = ""
        for text, style, width, to_right in zip(row, styles, widths, right, strict=False):
            shown = _cut(text, width)
            space = " " * (width - _cells(shown))
            before += (space + _styled(shown, style) if to_right else _styled(shown, style) + space) + _GAP
        for part in _wrapped(row[-1], last) if wrap else [_cut(row[-1], last)]:
            printed.append((before + _styled(part, styles[-1])).rstrip())
            before = indent
    return "\n".join(printed)


def _columns() -> int:
    """The width of the terminal. `shutil` would tell it, but loads what archives need."""
    with suppress(ValueError, OSError):
        return int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size().columns or _WIDTH
    return _WIDTH


def _cut(text: str, width: int) -> str:
    if _cells(text) <= width:
        return text
    while _cells(text) >= width and text:
        text = text[:-1]
    return text + "…"


def _wrapped(text: str, width: int) -> list[str]:
    """The text in lines that end at a space; a longer word is divided."""
    if _cells(text) <= width:
        return [text]
    if not text.isascii() and any(_cells(char) > 1 for char in text):
        width = max(1, width // 2)  # textwrap counts characters
    import textwrap

    return textwrap.wrap(text, width, replace_whitespace=False, break_on_hyphens=False) or [""]


def _cells(text: str) -> int:
    """The columns of a terminal that a text takes: some characters take two, a combining one none."""
    if text.replace("–", "").isascii():  # what tables show of an unknown value
        return len(text)
    import unicodedata

    wide = sum(unicodedata.east_asian_width(char) in ("W", "F") for char in text)
    return len(text) + wide - sum(unicodedata.category(char) in ("Mn", "Me") for char in text)


def _styled(text: str, style: str) -> str:
    if not text or not style or not sys.stdout.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        return text
    if style != "bold" and os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m"
