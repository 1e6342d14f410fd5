"""The descriptors that a worker itself needs: whether they are unchanged, and how many more can be opened.

A handler that closes descriptors it does not own, or lets the next file that it opens replace them, ruins the process:
no job can be run or settled there, and SQLite could write into the file that a number now stands for and corrupt it.
"""

from __future__ import annotations

import errno
import fcntl
import resource
from os import close, dup, get_blocking

from supervisor.system import released
from supervisor.system.kernel import file_of, open_descriptors

_MOST = 1000  # the highest number for the canary: below the limit of select()
_NEAR = 8  # when at most this many descriptors are left, count it as none


class Descriptors:
    """All descriptors that are open when this is created are the worker's own.

    One more has a high number. Code that closes all descriptors closes this one, too, while files that are opened
    later get low numbers. So one quick system call between any two jobs detects it in time.
    """

    def __init__(self) -> None:
        self._own: dict[int, tuple[int, int]] = {}
        for number in open_descriptors():
            identity = file_of(number)
            if identity is not None:
                self._own[number] = identity
        self._canary = _high_copy(min(self._own))
        self._first_free = self.lowest_free()

    def gone(self) -> bool:
        """Whether all descriptors were closed. Costs one quick system call."""
        try:
            get_blocking(self._canary)
        except OSError:
            return True
        return False

    def changed(self) -> int | None:
        """One of our descriptors that is closed or refers to another file; None if there is none."""
        if self.gone():
            return self._canary
        while released.numbers:
            self._own.pop(released.numbers.pop(), None)
        while released.taken:
            number = released.taken.pop()
            identity = file_of(number)
            if identity is not None:
                self._own[number] = identity
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
        """Whether more than half of the possible descriptors are open."""
        return self.lowest_free() - self._first_free > (limit() - self._first_free) // 2


def make_room(descriptor: int) -> None:
    """To be called while the process has one thread: later, the kernel waits for all CPUs before it enlarges the table
    of descriptors, which takes 5 to 20 ms. `descriptor` is any open one.
    """
    close(_high_copy(descriptor))


def _high_copy(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, min(_MOST, limit() - _NEAR - 1))


def limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
