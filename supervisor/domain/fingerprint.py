"""The common part of failure messages: messages that differ only in numbers and names are grouped."""

from __future__ import annotations

import re

_LONGEST = 300  # characters that are compared

# In this order: quoted text may contain a path, and a path may contain numbers.
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
    """The message without its variable parts: numbers, hexadecimal ids, quoted text, paths and URLs."""
    text = " ".join(message[: 2 * _LONGEST].split())
    for pattern, word in _VARIABLE:
        text = pattern.sub(word, text)
    return text[:_LONGEST]
