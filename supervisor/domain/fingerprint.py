"""What messages of failures have in common: those that differ only in numbers and names are one."""

from __future__ import annotations

import re

_LONGEST = 300  # characters that are compared

# In this order: what is quoted may hold a path, a path numbers.
_VARIABLE = (
    (re.compile(r"""(?<!\w)(?:'[^'\n]{0,200}'|"[^"\n]{0,200}"|`[^`\n]{0,200}`)(?!\w)"""), "“…”"),
    (re.compile(r"[a-z][a-z0-9+.-]{1,20}://[^\s,;)\]>]+", re.IGNORECASE), "url"),
    (re.compile(r"(?<![\w.])(?:~|\.{1,2}|[A-Za-z]:)?(?:[/\\][\w.@%+~-]+)+[/\\]?"), "path"),
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE), "#"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "#"),
    (re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{8,}\b", re.IGNORECASE), "#"),
    (re.compile(r"[+-]?\d+(?:[.,:_]\d+)*"), "#"),
)


def fingerprint(message: str) -> str:
    """The message without what varies: numbers, ids in hexadecimal, what is quoted, paths and URLs."""
    text = " ".join(message[: 2 * _LONGEST].split())
    for pattern, word in _VARIABLE:
        text = pattern.sub(word, text)
    return text[:_LONGEST]
