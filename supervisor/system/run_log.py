"""What a run prints, within limits: its beginning and its end, in memory that may outlive the process.

Layout: the run's job and token, the total number of bytes, then the first HEAD_BYTES of them, then a ring of the last.
All words are 8 bytes in the machine's byte order. The slots of one scoreboard share a file; each has a region
of its own that is mapped by its worker alone.
"""

from __future__ import annotations

import contextlib
import re
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from supervisor.system.mappings import ALWAYS, fork_mark, get_from_ring, mapped, put_in_ring, words

HEAD_BYTES = 16 * 1024  # the beginning, where the first error is
MOST_BYTES = 64 * 1024  # including the end, where the last error is
_RING_BYTES = MOST_BYTES - HEAD_BYTES
_WORDS = struct.Struct("qqq")  # job, token, size
_HEAD_AT = _WORDS.size
_RING_AT = _HEAD_AT + HEAD_BYTES
_BYTES = _HEAD_AT + MOST_BYTES
_REGION = 128 * 1024  # from one slot's to the next, a multiple of any page size
_LEFT_OUT = re.compile(rb"^\[(\d+) bytes left out\]\n", re.MULTILINE)
_REPLACED = {0: "?", 0xFFFD: "?"}  # NUL ends a text for many readers; with these, each byte is at most one character


class RunLog:
    """Captures output while a `run` is set, whose first two items are its job and token. Any thread may add to it.

    `size` is the number of bytes. Both are attributes because thousands of runs a second start and end.
    """

    def __init__(self, memory: memoryview | None = None) -> None:
        self.run: Sequence[Any] | None = None
        self.size = 0
        self._use(memoryview(bytearray(_BYTES)) if memory is None else memory)
        self._mark = ALWAYS if memory is None else fork_mark()
        self._lock = threading.RLock()  # a signal handler may print while it interrupts `add`

    def _use(self, memory: memoryview) -> None:
        self._memory = memory
        self._words = words(memory, 3)

    def forget(self) -> None:
        """What was captured is stored elsewhere, or not needed."""
        with self._lock:
            self.size = self._words[2] = 0

    def line(self, text: str) -> None:
        self.add((text + "\n").encode("utf-8", "backslashreplace"))

    def add(self, data: bytes) -> None:
        with self._lock:
            run = self.run
            if run is None or not self._mark[0]:  # or in a fork by C code, which has no such memory
                return
            at, self.size = self.size, self.size + len(data)
            if at < HEAD_BYTES:
                head, data = data[: HEAD_BYTES - at], data[HEAD_BYTES - at :]
                self._memory[_HEAD_AT + at : _HEAD_AT + at + len(head)] = head
            if data:
                tail = data[-_RING_BYTES:]
                put_in_ring(self._memory[_RING_AT:], self.size - len(tail) - HEAD_BYTES, tail)
            # Last, so that a reader counts only what is there if we die.
            words = self._words
            if words[0] != run[0] or words[1] != run[1]:
                words[2] = 0
                words[0], words[1] = run[0], run[1]
            words[2] = self.size

    def text(self) -> str | None:
        """All of it, or beginning and end in whole lines around a line that says how much is missing; None if empty."""
        with self._lock:
            return _text(self._memory, self.size)

    def forget_in_child(self) -> None:
        """In a process that a handler has forked: its output is not part of the run."""
        self._lock = threading.RLock()  # the holder of the other lock does not exist here
        self._use(memoryview(bytearray(_BYTES)))
        self.run = None


def shared(path: Path, slot: int) -> memoryview | None:
    """Memory for a slot's run log that can be read when this process is dead; None if there is no room for it."""
    memory = mapped(path, slot * _REGION, _BYTES)
    if memory is not None:
        words(memory, 3)[2] = 0  # clear a predecessor's output
    return memory


def said(path: Path, slot: int, job: int, token: int) -> str | None:
    """The output of a run whose worker is dead; None if there was none, or it is unknown."""
    try:
        with path.open("rb") as file:
            memory, size = _region(file, slot, job, token)
    except OSError:
        return None
    return _text(memory, size)


def printed(path: Path, slot: int, job: int, token: int, since: int) -> tuple[bytes, int]:
    """What a run that goes on has printed behind the first `since` bytes, and how many bytes it has printed in all.
    A line says how much of it is lost. Raises OSError if the file cannot be read.
    """
    with path.open("rb") as file:
        memory, size = _region(file, slot, job, token)
        _, now = _region(file, slot, job, token)
    if size <= since or now < size:  # the run may have ended while we read, and another one prints
        return b"", since
    # What was written while we read may have replaced the oldest bytes.
    oldest = max(HEAD_BYTES, max(size, now) - _RING_BYTES)
    head = _stored(memory, since, min(size, HEAD_BYTES))
    tail = _stored(memory, max(since, oldest), size)
    if missed := size - since - len(head) - len(tail):
        return b"%b%b[%d bytes left out]\n%b" % (head, b"" if head.endswith(b"\n") else b"\n", missed, tail), size
    return head + tail, size


def behind(log: str, since: int) -> str:
    """What the stored log of a run has behind the first `since` bytes that the run printed."""
    data = log.encode("utf-8", "replace")
    found = _LEFT_OUT.search(data) if len(data) > MOST_BYTES // 2 else None
    if found is None or since <= found.start():
        return data[since:].decode("utf-8", "replace")
    missing = found.start() + int(found[1]) - since
    if missing > 0:
        return f"[{missing} bytes left out]\n{data[found.end() :].decode('utf-8', 'replace')}"
    return data[found.end() - missing :].decode("utf-8", "replace")


def _region(file: BinaryIO, slot: int, job: int, token: int) -> tuple[memoryview, int]:
    """A slot's memory, and how much of it belongs to this run."""
    file.seek(slot * _REGION)
    memory = memoryview(file.read(_BYTES))
    if len(memory) < _BYTES:
        return memory, 0
    of_job, of_token, size = _WORDS.unpack_from(memory)
    return memory, size if (of_job, of_token) == (job, token) else 0


def _text(memory: memoryview, size: int) -> str | None:
    if size <= 0:
        return None
    if size <= MOST_BYTES:
        return _decoded(_stored(memory, 0, size))
    head, tail = _stored(memory, 0, HEAD_BYTES), _stored(memory, size - _RING_BYTES, size)
    head = head[: head.rfind(b"\n") + 1] or head
    tail = tail.partition(b"\n")[2] or tail
    between = "" if head.endswith(b"\n") else "\n"
    left_out = size - len(head) - len(tail)
    return f"{_decoded(head)}{between}[{left_out} bytes left out]\n{_decoded(tail)}"


def _stored(memory: memoryview, start: int, end: int) -> bytes:
    """What was printed from one position to another, of what is still there."""
    head = bytes(memory[_HEAD_AT:_RING_AT][start:end])
    at = max(start, HEAD_BYTES)
    return head + get_from_ring(memory[_RING_AT:], at - HEAD_BYTES, end - at) if end > at else head


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace").translate(_REPLACED)


def tee(stream: TextIO | None, run_log: RunLog) -> None:
    """Capture what is written to a stream in the run log, whoever writes it: also a logging handler."""
    if stream is None:
        return
    write = stream.write

    def written(text: str) -> int:
        count = write(text)
        if run_log.run is not None:
            run_log.add(text.encode("utf-8", "backslashreplace"))
        return count

    # An attribute of the object itself, because others already have a reference to it. Not every object that
    # may replace a standard stream allows that.
    with contextlib.suppress(AttributeError, TypeError):
        stream.write = written  # type: ignore[method-assign]
