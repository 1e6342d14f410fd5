"""The stacks of a worker that was asked for them: they belong to its job, and dozens of raw lines are no event."""

from __future__ import annotations

import re

_HEAD = re.compile(rb"(Current thread|Thread) 0x[0-9a-f]+( \[.*\])? \(most recent call first\):\s*")
_FRAME = re.compile(rb'  (File ".*", line (\d+|\?\?\?) in .*|<.*>|\.\.\.)\s*')
_LONGEST = 64 * 1024  # bytes of a line that are held back until it ends


class StackFilter:
    """Leaves out of a stream what `faulthandler` writes into it."""

    def __init__(self) -> None:
        self._begun = b""  # of a line that has not ended
        self._inside = False

    def pass_on(self, data: bytes) -> bytes:
        """What else there is, in whole lines."""
        *lines, self._begun = (self._begun + data).split(b"\n")
        kept = [line + b"\n" for line in lines if not self._is_stack(line)]
        if len(self._begun) > _LONGEST:
            kept.append(self.rest())
        return b"".join(kept)

    def rest(self) -> bytes:
        """The line that has not ended."""
        begun, self._begun = self._begun, b""
        return b"" if self._is_stack(begun) else begun

    def _is_stack(self, line: bytes) -> bool:
        if _HEAD.fullmatch(line):
            self._inside = True
        elif line and not _FRAME.fullmatch(line):  # an empty line stands between two stacks
            self._inside = False
        return self._inside
