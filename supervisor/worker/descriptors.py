"""The descriptors that a worker itself needs: whether they are still what they were, and how many more there can be.

A handler that closes what is not its own, or has it replaced by the next file that it opens, ruins the process: no job
can be run or settled there any more, and what SQLite writes to a number that now means another file would spoil that.
"""

from __future__ import annotations

import errno
import fcntl
import resource
from os import close, dup, get_blocking

from supervisor.system import released
from supervisor.system.kernel import file_of, open_descriptors

_MOST = 1000  # the highest number for the canary: below what select() can wait for
_NEAR = 8  # descriptors short of the limit that count as none left


class Descriptors:
    """All that are open when this is made are the worker's own.

    One more has a high number: whoever closes everything closes that, too, and the next files that are opened get
    low ones. So one quick system call tells in time, between any two jobs.
    """

    def __init__(self) -> None:
        self._own: dict[int, tuple[int, int]] = {}
        for number in open_descriptors():
            identity = file_of(number)
            if identity is not None:
                self._own[number] = identity
        some = min(self._own)
        self._canary = fcntl.fcntl(some, fcntl.F_DUPFD_CLOEXEC, min(_MOST, limit() - _NEAR - 1))
        self._first_free = self.lowest_free()

    def gone(self) -> bool:
        """Whether everything was closed. Costs one quick system call."""
        try:
            get_blocking(self._canary)
        except OSError:
            return True
        return False

    def changed(self) -> int | None:
        """A descriptor of ours that is closed or stands for another file; None if there is none."""
        if self.gone():
            return self._canary
        while released.numbers:
            self._own.pop(released.numbers.pop(), None)
        for number, identity in self._own.items():
            if file_of(number) != identity:
                return number
        return None

    def lowest_free(self) -> int:
        """The number that the next file would get; the limit if none can be opened."""
        try:
            number = dup(self._canary)
        except OSError as error:
            return limit() if error.errno == errno.EMFILE else 0
        close(number)
        return number

    def exhausted(self) -> bool:
        return self.lowest_free() >= limit() - _NEAR

    def leaking(self) -> bool:
        """Whether more than half of those that could be opened are."""
        return self.lowest_free() - self._first_free > (limit() - self._first_free) // 2


def limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
