"""Texts from other sources, shortened for readers."""

from __future__ import annotations

from collections.abc import Iterable

LONGEST = 2000  # characters of a message


def shortened(text: str, most: int = LONGEST) -> str:
    """The text, or its beginning and the number of missing characters."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more characters)"


def like(name: str, known: Iterable[str]) -> str:
    """`; did you mean tag?`, for the end of a sentence, if one of these is nearly the same; otherwise empty."""
    import difflib  # imported here: only needed for misspelt names

    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
