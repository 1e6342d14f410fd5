"""Tables and headings as text for people, as wide as the terminal.

Rich could draw them, but takes longer to import than most commands take to run.
"""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from supervisor.domain.text import MAX_CELL, MAX_VALUE, clean

COLOURS = {
    "done": "green",
    "running": "cyan",
    "failed": "red",
    "quarantined": "magenta",
    "cancelled": "yellow",
    "ok": "green",
    "note": "cyan",
    "warning": "yellow",
    "fault": "red",
}
_CODES = {"bold": 1, "red": 31, "green": 32, "yellow": 33, "magenta": 35, "cyan": 36}
_WIDTH = 120  # columns where there is no terminal
_GAP = "  "
_LEAST = 12  # cells that the last column keeps, if it has as much to say


def heading(text: str) -> str:
    return f"\n{_styled(clean(text), 'bold')}"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, wrap: bool = False) -> str:
    """A table with its column names in capitals. A name that ends in > is aligned to the right.

    The last column takes the remaining width. Longer text is cut, or wrapped with `wrap`.
    """
    limit = MAX_VALUE if wrap else MAX_CELL
    names = [name.rstrip(">").upper() for name in columns]
    right = [name.endswith(">") for name in columns[:-1]]
    cells = [[clean(value, limit=limit) for value in row] for row in rows]
    wants = [max(map(_cells, column)) for column in zip(names, *cells, strict=True)]
    widths = _widths(wants, shutil.get_terminal_size((_WIDTH, 24)).columns)
    lines = [*_row(names, ["bold"] * len(names), widths, right, wrap=wrap)]
    for row in cells:
        lines += _row(row, [COLOURS.get(cell, "") for cell in row], widths, right, wrap=wrap)
    return "\n".join(lines)


def _row(
    row: Sequence[str], styles: Sequence[str], widths: Sequence[int], right: Sequence[bool], *, wrap: bool
) -> Iterator[str]:
    *first, last = row
    start = ""
    for text, style, width, to_right in zip(first, styles, widths, right, strict=False):
        shown = _cut(text, width)
        space = " " * (width - _cells(shown))
        start += (space + _styled(shown, style) if to_right else _styled(shown, style) + space) + _GAP
    for index, part in enumerate(_wrapped(last, widths[-1]) if wrap else [_cut(last, widths[-1])]):
        margin = " " * (sum(widths[:-1]) + len(_GAP) * len(first)) if index else start
        yield (margin + _styled(part, styles[-1])).rstrip()


def _widths(wants: Sequence[int], room: int) -> list[int]:
    """The width of each column: what it wants, and for the last one the rest. Without enough room, the widest of the
    others get less."""
    *first, last = wants
    left = room - len(_GAP) * len(first)
    over = sum(first) + min(last, _LEAST) - left
    while over > 0 and max(first, default=1) > 1:
        first[first.index(max(first))] -= 1
        over -= 1
    return [*first, max(1, left - sum(first))]


def _wrapped(text: str, width: int) -> Iterator[str]:
    """The text in lines that end at a space; a longer word is divided."""
    start = 0
    while (end := start + max(1, _fitting(text[start : start + width], width))) < len(text):
        space = text.rfind(" ", start + 1, end + 1)
        end = end if space < 0 else space
        yield text[start:end].rstrip(" ")
        start = end
        while text[start : start + 1] == " ":
            start += 1
    yield text[start:]


def _cut(text: str, width: int) -> str:
    return text if _cells(text) <= width else text[: _fitting(text, width - 1)] + "…"


def _fitting(text: str, width: int) -> int:
    """How many characters fit into the width."""
    if text.isascii():
        return min(width, len(text))
    used = 0
    for index, char in enumerate(text):
        used += _cells(char)
        if used > width:
            return index
    return len(text)


def _cells(text: str) -> int:
    """The columns of a terminal that a text takes: some characters take two, a combining one none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.category(char) in ("Mn", "Me") else 1 + (unicodedata.east_asian_width(char) in ("W", "F"))
        for char in text
    )


def _styled(text: str, style: str) -> str:
    if not text or not style or not sys.stdout.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        return text
    if style != "bold" and os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m"
