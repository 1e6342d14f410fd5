"""The standard streams of a process: always present, and never an error for code that prints."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TextIO

STDOUT, STDERR = 1, 2


def make_safe(*, keep_open: bool = False) -> None:
    """Open the missing ones, because otherwise the next files would get those numbers; and ignore errors. Whatever the
    locale, they are UTF-8, and what that cannot encode is escaped.

    With `keep_open` they cannot be closed: for processes that run handlers.
    """
    for number in (0, STDOUT, STDERR):
        try:
            os.fstat(number)
        except OSError:
            _open_nothing(number)
    for name, number in (("stdout", STDOUT), ("stderr", STDERR)):
        _renew(name, number)
        with contextlib.suppress(Exception):  # closed, or another object that was put there, is left alone
            getattr(sys, f"__{name}__").reconfigure(encoding="utf-8", errors="backslashreplace")
        if not _usable(getattr(sys, name, None)):
            stream = open(number, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
        forgive(getattr(sys, name), keep_open=keep_open)


class _Unseekable(io.FileIO):
    def seekable(self) -> bool:
        return False


def _renew(name: str, number: int) -> None:
    """Replace the interpreter's own stream if that is a file: in workers that are forked later the descriptor is a
    pipe, and a stream that was made for a file would ask for its position there, so that `reconfigure` would fail.
    """
    own = getattr(sys, f"__{name}__", None)
    with contextlib.suppress(Exception):  # closed, or another object
        if own is getattr(sys, name) and own.seekable():
            own.flush()
            raw = io.BufferedWriter(_Unseekable(number, "w", closefd=False))
            stream = io.TextIOWrapper(raw, "utf-8", "backslashreplace", line_buffering=True)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def flush() -> None:
    """Before a fork or an end. Errors are ignored: handlers close these streams, remove them, or replace them."""
    for name in ("stdout", "stderr"):
        with contextlib.suppress(BaseException):
            getattr(sys, name).flush()


def _usable(stream: TextIO | None) -> bool:
    """Whether it can be written to. Other objects that were put there are left alone."""
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

    # Attributes of the object itself, because others already have a reference to it, such as a logging handler. Not
    # every object that may replace a standard stream allows that.
    with contextlib.suppress(AttributeError, TypeError):
        stream.write = written  # type: ignore[method-assign]
        stream.flush = flushed  # type: ignore[method-assign]
        if keep_open:
            stream.close = flushed  # type: ignore[method-assign]
