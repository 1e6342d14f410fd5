"""Terminal input as names of keys."""

from __future__ import annotations

import re

_SEQUENCES = {"A": "up", "B": "down", "Z": "backtab"}
_NAMES = {
    "\t": "tab",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
    "\x03": "q",
    "\x1b": "escape",
}
_KEY = re.compile(r"\x1b[\[O][0-9;]*(?P<sequence>[A-Za-z~])|(?P<single>.)", re.DOTALL)


def decode(sent: bytes) -> list[str]:
    """The keys in one read. Printable keys stand for themselves; unknown sequences are left out."""
    found = []
    for match in _KEY.finditer(sent.decode("utf-8", "ignore")):
        if match["sequence"]:
            name = _SEQUENCES.get(match["sequence"], "")
        else:
            name = _NAMES.get(match["single"], match["single"] if match["single"].isprintable() else "")
        if name:
            found.append(name)
    return found
