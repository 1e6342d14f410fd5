"""Text from any source, made safe for a terminal. Pure.

All text from rows, handlers and other programs passes through `clean`, in the command line and in the log for people.
Then no text can start a new line, move the cursor, or change the writing direction of what follows.
"""

from __future__ import annotations

CELL = 300  # characters of a value in a list
VALUE = 100_000  # of a value that is shown alone
INDENT = "  "


def clean(text: object, newline: str = "\\n", *, limit: int = VALUE) -> str:
    """One line without control characters, direction marks and lone surrogates, of at most `limit` characters.

    Characters that cannot be shown appear as escapes: `\\x1b`, `\\u202e`.
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
    """The same for a text of several lines, like a traceback: each is indented, so that none looks like our own."""
    if isinstance(text, (bytes, bytearray)):
        text = bytes(text[: 4 * limit]).decode("utf-8", "replace")
    text = str(text)
    if len(text) > limit:
        text = f"… {len(text) - limit:,} characters before\n{text[-limit:]}"
    return "\n".join(INDENT + clean(part.expandtabs()) for part in text.split("\n"))
