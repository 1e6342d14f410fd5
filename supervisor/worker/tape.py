"""What a run says, within bounds: its beginning and its end."""

from __future__ import annotations

import contextlib
import threading
from typing import TextIO

HEAD_BYTES = 16 * 1024  # where what went wrong first stands
MOST_BYTES = 64 * 1024  # with the end, where what went wrong last stands
_TAIL_BYTES = MOST_BYTES - HEAD_BYTES
_UNSAYABLE = {0: "?", 0xFFFD: "?"}  # NUL ends a text for many readers; so every byte is at most one again


class Tape:
    """Takes down while it is `on`, which is for one run. Any thread may add to it.

    `begin` and `end` are passed thousands of times a second; `size` is the bytes that were said.
    """

    def __init__(self) -> None:
        self.on = False
        self.size = 0
        self._head = bytearray()
        self._tail = bytearray()
        self._lock = threading.RLock()  # a signal's handler may print while we take down what it interrupts

    def begin(self) -> None:
        """A run begins: what was taken down before is forgotten."""
        if self.size:
            with self._lock:
                self.size = 0
                self._head.clear()
                self._tail.clear()
        self.on = True

    def end(self) -> None:
        self.on = False

    def line(self, text: str) -> None:
        self.add((text + "\n").encode("utf-8", "backslashreplace"))

    def add(self, data: bytes) -> None:
        with self._lock:
            if not self.on:
                return
            self.size += len(data)
            room = HEAD_BYTES - len(self._head)
            if room > 0:
                self._head += data[:room]
                data = data[room:]
            self._tail += data[-_TAIL_BYTES:]
            if len(self._tail) > 2 * _TAIL_BYTES:
                del self._tail[:-_TAIL_BYTES]

    def text(self) -> str | None:
        """All of it, or beginning and end in whole lines around one that says how much is missing; None for nothing."""
        with self._lock:
            size, head, tail = self.size, bytes(self._head), bytes(self._tail[-_TAIL_BYTES:])
        if not size:
            return None
        if size == len(head) + len(tail):
            return _decoded(head + tail)
        head = head[: head.rfind(b"\n") + 1] or head
        tail = tail.partition(b"\n")[2] or tail
        between = "" if head.endswith(b"\n") else "\n"
        left_out = size - len(head) - len(tail)
        return f"{_decoded(head)}{between}[{left_out} bytes left out]\n{_decoded(tail)}"

    def forget_in_child(self) -> None:
        """In a process that a handler has forked: what is said there is no part of the run."""
        self._lock = threading.RLock()  # whoever held the other one is not here
        self.on = False


def tee(stream: TextIO | None, tape: Tape) -> None:
    """Have the tape take down what is written to a stream, by whoever holds it: a logging handler, too."""
    if stream is None:
        return
    write = stream.write

    def written(text: str) -> int:
        count = write(text)
        if tape.on:
            tape.add(text.encode("utf-8", "backslashreplace"))
        return count

    # An attribute of the very object, because others have taken hold of it before us. Not every object that
    # somebody has put in place of a standard stream can have one.
    with contextlib.suppress(AttributeError, TypeError):
        stream.write = written  # type: ignore[method-assign]


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace").translate(_UNSAYABLE)
