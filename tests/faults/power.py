"""What is left of a database's files when the power fails: what was synced, and of the rest any part.

Made from the book that `power.c` keeps. A file's name survives if its folder was synced after it was made, and
is gone for good only if the folder was synced after it was removed.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

CREATED, WRITTEN, CUT, SYNCING, SYNCED, REMOVED = range(1, 7)
_HEAD = struct.Struct("4IQ")


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that was done. `data` is what was written at `offset`; of CUT that is the new size."""

    what: int
    process: int
    name: str
    offset: int
    data: bytes


def read(book: Path) -> Iterator[Record]:
    """Everything that was done, in order."""
    text = book.read_bytes()
    at = 0
    while at < len(text):
        what, process, name_length, data_length, offset = _HEAD.unpack_from(text, at)
        at += _HEAD.size
        name, data = text[at : at + name_length], text[at + name_length : at + name_length + data_length]
        at += name_length + data_length
        yield Record(what, process, name.decode(), offset, data)


@dataclass
class _File:
    """Its content as far as it was synced, and what was done since."""

    solid: bytearray = field(default_factory=bytearray)
    loose: list[Record] = field(default_factory=list)


class Disk:
    """Follows the records; `after_power_loss` tells what may be found at any moment."""

    def __init__(self, database: Path) -> None:
        self._folder = str(database.parent)
        self._files: dict[str, _File] = {}  # what programs see
        self._named: dict[str, _File] = {}  # what the folder on the disk says
        self._syncing: dict[tuple[int, str], int | dict[str, _File]] = {}

    def follow(self, record: Record) -> None:
        name, key = record.name, (record.process, record.name)
        if record.what == CREATED:
            self._files[name] = _File()
        elif record.what == REMOVED:
            self._files.pop(name, None)
        elif record.what in (WRITTEN, CUT):
            self._files.setdefault(name, _File()).loose.append(record)
        elif record.what == SYNCING:
            # What is done while a sync is under way may come too late for it.
            self._syncing[key] = dict(self._files) if name == self._folder else len(self._files[name].loose)
        else:
            self._settle(name, self._syncing.pop(key))

    def _settle(self, name: str, covered: int | dict[str, _File]) -> None:
        if isinstance(covered, dict):
            self._named = covered
            return
        file = self._files[name]
        for record in file.loose[:covered]:
            _apply(file.solid, record)
        del file.loose[:covered]

    def after_power_loss(self, dice: random.Random | None = None) -> dict[str, bytes]:
        """The files by name: with what was synced, and with dice any part of what was not."""
        left = {}
        for name, file in self._named.items():
            content = bytearray(file.solid)
            for record in file.loose:
                if dice is not None and dice.random() < 0.5:
                    _apply(content, record)
            left[name] = bytes(content)
        return left


def _apply(content: bytearray, record: Record) -> None:
    size = record.offset if record.what == CUT else max(len(content), record.offset + len(record.data))
    content.extend(bytes(max(0, size - len(content))))
    if record.what == CUT:
        del content[size:]
    else:
        content[record.offset : record.offset + len(record.data)] = record.data
