"""The line of each key in a TOML text; tomllib does not provide it.

The text has already been accepted by tomllib, so this parser only has to find the keys: it knows tables,
arrays of tables, dotted keys, inline tables, arrays and the four kinds of strings, and nothing about
values. If it fails nevertheless, it keeps the lines found so far: a problem is then reported at the nearest
known line, never hidden.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress

Key = tuple[str | int, ...]
"""The path to a value: ("pools", "tag", "timeout"), ("schedules", 0, "name")."""

_BLANK = re.compile(r"[ \t]*")
_FILLER = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'')
_PART = re.compile(rf"[A-Za-z0-9_-]+|{_QUOTED.pattern}")
# A multi-line string may end in one or two quotes of its own before the closing three.
_STRING = re.compile(rf'"""(?:\\.|[^\\])*?"{{3,5}}(?!")|\'\'\'.*?\'{{3,5}}(?!\')|{_QUOTED.pattern}', re.DOTALL)
_PLAIN = re.compile(r"[^,\]}\n#]*")


class Lines:
    """The lines of one text, by key."""

    def __init__(self, text: str) -> None:
        self._text = text.replace("\r\n", "\n")
        self._at = 0
        self._starts = [0, *(match.end() for match in re.finditer("\n", self._text))]
        self._lines: dict[Key, int] = {}
        self._entries: dict[Key, int] = {}  # how many [[entries]] an array of tables has so far
        with suppress(_ParseError, ValueError, RecursionError):
            self._document()

    def of(self, key: Sequence[str | int]) -> int | None:
        """The line of `key` (from 1), or that of the nearest table around it; None if there is none."""
        for length in range(len(key), 0, -1):
            line = self._lines.get(tuple(key[:length]))
            if line is not None:
                return line
        return None

    def _document(self) -> None:
        table: Key = ()
        while self._skip(_FILLER) < len(self._text):
            if self._text.startswith("[", self._at):
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> Key:
        repeated = self._text.startswith("[[", self._at)
        start = self._at
        self._at += 2 if repeated else 1
        key = self._latest(self._key())
        if repeated:
            entry = self._entries.get(key, 0)
            self._entries[key] = entry + 1
            key = (*key, entry)
        self._record(key, start)
        self._expect("]]" if repeated else "]")
        return key

    def _latest(self, names: Key) -> Key:
        """A table below an array of tables belongs to the array's latest entry."""
        key: Key = ()
        for index, name in enumerate(names):
            key = (*key, name)
            if key in self._entries and index < len(names) - 1:
                key = (*key, self._entries[key] - 1)
        return key

    def _pair(self, table: Key) -> None:
        self._skip(_BLANK)
        start = self._at
        key = (*table, *self._key())
        self._record(key, start)
        self._expect("=")
        self._skip(_BLANK)
        self._value(key)

    def _key(self) -> Key:
        names: list[str] = []
        while True:
            self._skip(_BLANK)
            part = _PART.match(self._text, self._at)
            if part is None:
                raise _ParseError
            names.append(_name(part[0]))
            self._at = part.end()
            self._skip(_BLANK)
            if not self._text.startswith(".", self._at):
                return tuple(names)
            self._at += 1

    def _value(self, key: Key) -> None:
        string = _STRING.match(self._text, self._at)
        if string is not None:
            self._at = string.end()
        elif self._text.startswith("[", self._at):
            self._array(key)
        elif self._text.startswith("{", self._at):
            self._inline(key)
        else:
            self._skip(_PLAIN)

    def _array(self, key: Key) -> None:
        self._at += 1
        index = 0
        while not self._closes("]"):
            item, start = (*key, index), self._at
            self._record(item, start)
            self._value(item)
            if self._at == start:
                raise _ParseError
            self._skip(_FILLER)
            if self._text.startswith(",", self._at):
                self._at += 1
            index += 1

    def _inline(self, key: Key) -> None:
        self._at += 1
        while not self._closes("}"):
            self._pair(key)
            self._skip(_FILLER)
            if self._text.startswith(",", self._at):
                self._at += 1

    def _closes(self, bracket: str) -> bool:
        self._skip(_FILLER)
        if self._at >= len(self._text):
            raise _ParseError
        if not self._text.startswith(bracket, self._at):
            return False
        self._at += 1
        return True

    def _record(self, key: Key, at: int) -> None:
        line = bisect_right(self._starts, at)
        for length in range(1, len(key) + 1):
            self._lines.setdefault(key[:length], line)

    def _expect(self, mark: str) -> None:
        self._skip(_BLANK)
        if not self._text.startswith(mark, self._at):
            raise _ParseError
        self._at += len(mark)

    def _skip(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self._text, self._at)
        assert match is not None  # these patterns match the empty text too
        self._at = match.end()
        return self._at


def _name(part: str) -> str:
    if part[0] not in "\"'":
        return part
    return next(iter(tomllib.loads(f"{part} = 0")))  # it handles the escapes


class _ParseError(Exception):
    """The text differs from what the parser expects."""
