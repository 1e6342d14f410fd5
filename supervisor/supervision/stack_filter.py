"""Removes the stack dumps that the supervisor requested from a worker's output: they belong to the job, not the log."""

from __future__ import annotations

import re

_HEAD = re.compile(rb"(Current thread|Thread) 0x[0-9a-f]+( \[.*\])? \(most recent call first\):\s*")
_FRAME = re.compile(rb'  (File ".*", line (\d+|\?\?\?) in .*|<.*>|\.\.\.)\s*')
_LONGEST = 64 * 1024  # bytes of an incomplete line that are held back


class StackFilter:
    """Removes the output of `faulthandler` from a stream."""

    def __init__(self) -> None:
        self._begun = b""  # an incomplete line
        self._inside = False

    def pass_on(self, data: bytes) -> bytes:
        """The other output, in complete lines."""
        *lines, self._begun = (self._begun + data).split(b"\n")
        kept = [line + b"\n" for line in lines if not self._is_stack(line)]
        if len(self._begun) > _LONGEST:
            kept.append(self.rest())
        return b"".join(kept)

    def rest(self) -> bytes:
        """The incomplete last line."""
        begun, self._begun = self._begun, b""
        return b"" if self._is_stack(begun) else begun

    def _is_stack(self, line: bytes) -> bool:
        if _HEAD.fullmatch(line):
            self._inside = True
        elif line and not _FRAME.fullmatch(line):  # an empty line separates two stacks
            self._inside = False
        return self._inside
