"""Texts that others made, cut to what people read."""

from __future__ import annotations

from collections.abc import Iterable

LONGEST = 2000  # characters of a message


def shortened(text: str, most: int = LONGEST) -> str:
    """The text, or its beginning and how much is missing."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more characters)"


def like(name: str, known: Iterable[str]) -> str:
    """`; did you mean tag?`, for the end of a sentence, if one of these is nearly the same; else nothing."""
    import difflib  # only where something is misspelt

    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
