"""Texts that others made, cut to what people read."""

from __future__ import annotations

LONGEST = 2000  # characters of a message


def shortened(text: str, most: int = LONGEST) -> str:
    """The text, or its beginning and how much is missing."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more characters)"
