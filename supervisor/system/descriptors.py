"""The descriptors that a worker itself needs: whether they are unchanged, and how many more can be opened.

A handler that closes descriptors it does not own, or lets the next file that it opens replace them, ruins the process:
no job can be run or settled there, and SQLite could write into the file that a number now stands for and corrupt it.

One more descriptor, the canary, has a high number. Code that closes all descriptors closes this one, too, while files
that are opened later get low numbers. So one quick system call between any two jobs detects it in time.
"""

from __future__ import annotations

import errno
import fcntl
import resource
from collections.abc import Callable, Iterable
from os import close, dup, get_blocking

from supervisor.system.kernel import file_of, open_descriptors

_MOST = 1000  # the highest number for the canary: below the limit of select()
_NEAR = 8  # when at most this many descriptors are left, count it as none

_own: dict[int, tuple[int, int]] = {}
_foreign: set[int] = set()  # numbers that belong to the handler's modules, which opened them before `record`
_canary = -1
_first_free = 0


def record() -> None:
    """All that are open now are the worker's own, except those that were disowned before."""
    global _canary, _first_free
    _own.clear()
    for number in open_descriptors() - _foreign:
        own(number)
    _canary = _high_copy(min(_own))
    _first_free = _lowest_free()


def own(number: int) -> None:
    """The worker itself has opened this one."""
    identity = file_of(number)
    _foreign.discard(number)
    if identity is not None:
        _own[number] = identity


def disown(numbers: Iterable[int]) -> None:
    """The worker is about to close these, or never used them: a handler that closes them is not to blame."""
    for number in numbers:
        _foreign.add(number)
        _own.pop(number, None)


def disown_closed(close_them: Callable[[], None]) -> None:
    """Close something, and disown the numbers that are free afterwards."""
    before = open_descriptors()
    close_them()
    disown(before - open_descriptors())


def gone() -> bool:
    """Whether all descriptors were closed since `record`. Costs one quick system call."""
    try:
        get_blocking(_canary)
    except OSError:
        return _canary >= 0
    return False


def changed() -> int | None:
    """One of our descriptors that is closed or refers to another file; None if there is none."""
    if gone():
        return _canary
    for number, identity in list(_own.items()):
        if file_of(number) != identity and _own.get(number) == identity:  # another thread may have disowned it
            return number
    return None


def exhausted() -> bool:
    return _lowest_free() >= _limit() - _NEAR


def leaking() -> bool:
    """Whether more than half of the possible descriptors are open."""
    return _lowest_free() - _first_free > (_limit() - _first_free) // 2


def make_room(descriptor: int) -> None:
    """To be called while the process has one thread: later, the kernel waits for all CPUs before it enlarges the table
    of descriptors, which takes 5 to 20 ms. `descriptor` is any open one.
    """
    close(_high_copy(descriptor))


def _lowest_free() -> int:
    """The number that the next file would get; the limit if none can be opened."""
    try:
        number = dup(_canary)
    except OSError as error:
        return _limit() if error.errno == errno.EMFILE else 0
    close(number)
    return number


def _high_copy(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, min(_MOST, _limit() - _NEAR - 1))


def _limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
