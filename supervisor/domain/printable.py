"""Text from anywhere, made fit for a terminal. Pure.

Whatever a row, a handler or another program says passes `clean`, in the command line and in the log for people: then
no text can begin a line of its own, move the cursor, or turn the direction of what follows.
"""

from __future__ import annotations

CELL = 300  # characters of a value in a list
VALUE = 100_000  # of one that is shown by itself
INDENT = "  "


def clean(text: object, newline: str = "\\n", *, limit: int = VALUE) -> str:
    """One line without control characters, directions and lone surrogates, of `limit` characters at most.

    What cannot be shown stands as its escape: `\\x1b`, `\\u202e`.
    """
    if isinstance(text, (bytes, bytearray)):
        text = bytes(text[: 4 * limit]).decode("utf-8", "replace")
    text = str(text)
    if len(text) > limit:
        text = f"{text[:limit]}… {len(text) - limit:,} more characters"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else newline if char == "\n" else ascii(char)[1:-1] for char in text)


def clean_lines(text: object, *, limit: int = VALUE) -> str:
    """The same for a text of several lines, like a traceback: each is indented, so that none looks like ours."""
    if isinstance(text, (bytes, bytearray)):
        text = bytes(text[: 4 * limit]).decode("utf-8", "replace")
    text = str(text)
    if len(text) > limit:
        text = f"… {len(text) - limit:,} characters before\n{text[-limit:]}"
    return "\n".join(INDENT + clean(part.expandtabs()) for part in text.split("\n"))
