"""The standard streams of a process: always present, and never an error for code that prints."""

from __future__ import annotations

import contextlib
import io
import os
import sys

STDOUT, STDERR = 1, 2


class _Forgiving(io.TextIOWrapper):
    """What cannot be written, because nobody reads it any more or the disk is full, is lost; what UTF-8 cannot encode
    is escaped. It cannot be closed: other code prints, too.
    """

    def __init__(self, number: int) -> None:
        raw = io.BufferedWriter(_Unseekable(number, "w", closefd=False))
        super().__init__(raw, "utf-8", "backslashreplace", line_buffering=True)

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            super().flush()

    def close(self) -> None:
        self.flush()


class _Unseekable(io.FileIO):
    """In a worker that is forked later the descriptor is a pipe, which has no position to ask for."""

    def seekable(self) -> bool:
        return False


def make_safe() -> None:
    """Open the missing descriptors, because otherwise the next files would get those numbers, and replace the
    interpreter's own streams and those that are closed. Other objects that were put there are left alone.
    """
    for number in (0, STDOUT, STDERR):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
    for name, number in (("stdout", STDOUT), ("stderr", STDERR)):
        stream, interpreters = getattr(sys, name, None), getattr(sys, f"__{name}__", None)
        if isinstance(stream, _Forgiving):
            continue
        if interpreters is None or stream is interpreters or _is_closed(stream):
            with contextlib.suppress(Exception):
                stream.flush()  # type: ignore[union-attr]
            setattr(sys, name, _Forgiving(number))
            setattr(sys, f"__{name}__", getattr(sys, name))


def flush() -> None:
    """Before a fork or an end. Errors are ignored: handlers close these streams, remove them, or replace them."""
    for name in ("stdout", "stderr"):
        with contextlib.suppress(BaseException):
            getattr(sys, name).flush()


def _is_closed(stream: object) -> bool:
    with contextlib.suppress(Exception):
        return stream is None or stream.closed  # type: ignore[attr-defined]
    return False
