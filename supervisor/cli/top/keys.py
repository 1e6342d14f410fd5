"""Terminal input as names of keys."""

from __future__ import annotations

import re

_SEQUENCES = {
    "A": "up", "B": "down", "Z": "backtab", "H": "home", "F": "end",
    "1~": "home", "7~": "home", "4~": "end", "8~": "end", "5~": "pageup", "6~": "pagedown",
}  # fmt: skip
_NAMES = {
    "\t": "tab",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
    "\x03": "q",
    "\x1b": "escape",
}
_KEY = re.compile(r"\x1b[\[O](?:[0-9;]*(?P<letter>[A-Za-z])|(?P<number>[0-9;]*~))|(?P<single>.)", re.DOTALL)


def decode(sent: bytes) -> list[str]:
    """The keys in one read. Printable keys stand for themselves; unknown sequences are left out."""
    found = []
    for match in _KEY.finditer(sent.decode("utf-8", "ignore")):
        if sequence := match["letter"] or match["number"]:
            name = _SEQUENCES.get(sequence, "")
        else:
            name = _NAMES.get(match["single"], match["single"] if match["single"].isprintable() else "")
        if name:
            found.append(name)
    return found
