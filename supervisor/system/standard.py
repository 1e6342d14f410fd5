"""The standard streams of a process: there, and never an error of whoever prints."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

STDOUT, STDERR = 1, 2


def make_safe(*, keep_open: bool = False) -> None:
    """Open what the process was started without, or the next files would get those numbers; and forgive errors.

    With `keep_open` nobody can close them: where handlers run.
    """
    for number in (0, STDOUT, STDERR):
        try:
            os.fstat(number)
        except OSError:
            _open_nothing(number)
    for name, number in (("stdout", STDOUT), ("stderr", STDERR)):
        if not _usable(getattr(sys, name, None)):
            stream = open(number, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
        forgive(getattr(sys, name), keep_open=keep_open)


def flush() -> None:
    """Before a fork or an end. No error matters: handlers close these streams, remove them, or put others there."""
    for name in ("stdout", "stderr"):
        with contextlib.suppress(BaseException):
            getattr(sys, name).flush()


def _usable(stream: TextIO | None) -> bool:
    """Whether one can write there. Whatever else somebody has put there is none of our business."""
    if stream is None:
        return False
    with contextlib.suppress(Exception):
        return not stream.closed
    return True


def _open_nothing(number: int) -> None:
    opened = os.open(os.devnull, os.O_RDWR)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)


def forgive(stream: TextIO, *, keep_open: bool = False) -> None:
    """What cannot be written, because nobody reads it any more or the disk is full, is lost."""
    write, flush = stream.write, stream.flush

    def written(text: str) -> int:
        try:
            return write(text)
        except OSError:
            return len(text)

    def flushed() -> None:
        with contextlib.suppress(OSError):
            flush()

    # Attributes of the very object, because others have taken hold of it before us: a logging handler, too. Not
    # every object that somebody has put in place of a standard stream can have them.
    with contextlib.suppress(AttributeError, TypeError):
        stream.write = written  # type: ignore[method-assign]
        stream.flush = flushed  # type: ignore[method-assign]
        if keep_open:
            stream.close = flushed  # type: ignore[method-assign]
