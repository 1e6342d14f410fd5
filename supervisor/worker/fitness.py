"""Whether a worker's process can still run the next job.

After a run only the working directory and the umask are put back. What the worker itself needs is checked: its
descriptors, its signal handlers, how many files it can open. A worker in which that differs is replaced, or exits at
once if it cannot even settle. Everything else that a handler changes in its process is there for the next job, too.

A thread or a process that a job leaves behind may be intended: a library starts its threads with the first job, a
program is kept for the next one. So nothing is ended here.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from os import _exit, waitid
from time import monotonic
from traceback import print_exception
from typing import Any, NoReturn

from supervisor.domain.process_health import is_far_over
from supervisor.system import descriptors, kernel
from supervisor.system.slot import RecycleReason, Slot

EVERY = 0.1  # seconds between two checks while quick jobs are run
SLOW = 0.01  # seconds: after a run that took this long, a check costs little

EXIT_RUINED = 71  # of a worker that found its own process damaged; its slot's text says how
_MEMORY_CLOSELY = 1.0  # seconds between close checks for what the resident size does not show: pages no longer shared

_ANY = os.WEXITED | os.WNOHANG | os.WNOWAIT


class Ruined(Exception):
    """No job can be run or settled in this process any more; the sentence says why."""


class Fitness:
    """Checks the process between two jobs. Created when everything that the worker itself needs is open.

    `leave` makes the worker return what it has not started, and exit; `news` is the supervisor's eventfd. `done` is
    always the number of runs that have ended so far.
    """

    def __init__(self, slot: Slot, news: int, log: Any, leave: Callable[[], None]) -> None:
        self._slot = slot
        self._news = news
        self._log = log
        self._leave = leave
        descriptors.record()
        self._looked = monotonic()
        self._done = 0  # at the last check

    def set_up(self, own: Mapping[int, Any], wakeup: int) -> None:
        """Record the state that every job is to find: from now on, whatever is new was caused by a job. Raises Ruined.

        `own` are the signal handlers that the worker needs, `wakeup` is the descriptor that signals write to.
        """
        self._own, self._wakeup = own, wakeup
        self._folder = os.open(".", os.O_PATH | os.O_CLOEXEC)  # which may be deleted: its path would not do
        descriptors.own(self._folder)
        self._umask = os.umask(0)
        os.umask(self._umask)
        self._rights = _rights()
        for signal_number, handler in own.items():  # the set-up may have replaced them
            signal.signal(signal_number, handler)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, own)
        self._check_descriptors()

    def due(self, done: int, now: float) -> bool:
        """Whether quick jobs have been running long enough for a check."""
        return now - self._looked >= EVERY and done != self._done

    def seen(self, done: int) -> bool:
        """Whether nothing has been run since the last check."""
        return done == self._done

    def look(self, done: int) -> None:
        """Put back the working directory and the umask, and check the rest. Raises Ruined.

        Called in the main thread.
        """
        self._check_descriptors()
        os.umask(self._umask)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)  # which event loops use, too
        self._looked, self._done = monotonic(), done
        if changed := self._changed():
            self.report(changed)
        elif descriptors.exhausted():
            self.replace(RecycleReason.LEAKY)
        elif descriptors.leaking():
            self.request_recycle(RecycleReason.LEAKY)

    def _check_descriptors(self) -> None:
        number = descriptors.changed()
        if number is not None:
            raise Ruined(f"a handler has closed or replaced descriptor {number}, which belongs to the worker")

    def _changed(self) -> str:
        """What of the worker's own a handler has changed; otherwise ""."""
        try:
            os.fchdir(self._folder)
        except OSError:
            return "the working directory"
        if any(signal.getsignal(number) != handler for number, handler in self._own.items()):
            return "a signal handler of the worker"
        if signal.pthread_sigmask(signal.SIG_BLOCK, ()) & self._own.keys():
            return "the signal mask"
        return ""

    def is_restricted(self) -> bool:
        """Whether a handler has changed the user or a limit of the process, so that it may not be able to settle."""
        return _rights() != self._rights

    def report(self, changed: str) -> None:
        """A job has changed something that the worker needs for the next one."""
        self._log.warning("process_changed", what=changed, hint="the worker is replaced")
        self.replace(RecycleReason.CHANGED)

    def replace(self, why: RecycleReason) -> None:
        """Have a successor take over at once: this process runs no other job."""
        self.request_recycle(why)
        self._leave()

    def request_recycle(self, why: RecycleReason) -> None:
        """Ask for a successor; the worker continues until that one is ready."""
        if self._slot.request_recycle(why):
            os.eventfd_write(self._news, 1)

    def cease(self) -> None:
        """Tell the supervisor that from now on this worker runs no job, because its teardown begins."""
        alone = False
        try:
            waitid(os.P_ALL, 0, _ANY)  # does not reap those that have ended
        except ChildProcessError:
            alone = True
        self._slot.cease(monotonic(), alone=alone)
        with suppress(OSError):
            os.eventfd_write(self._news, 1)

    def out_of_memory(self) -> None:
        """A handler has reached the memory limit of this process: a new worker replaces it."""
        self._log.warning("memory_exhausted", hint="the worker is replaced")
        self._leave()


def _rights() -> tuple[object, ...]:
    return os.getresuid(), os.getresgid(), resource.getrlimit(resource.RLIMIT_FSIZE)


def leave_ruined(error: BaseException, slot: Slot, log: Any) -> NoReturn:
    """End the process at once. The supervisor handles what is not committed."""
    why = str(error) if isinstance(error, Ruined) else f"{type(error).__name__}: {error}"
    slot.tell(why)
    try:
        if not isinstance(error, Ruined):
            print_exception(error)
        log.error("worker_ruined", error=why)
    finally:
        _exit(EXIT_RUINED)


class MemoryWatch:
    """Checks the resident size, which is quick to read and never too small. Only above the limit it reads the size that
    counts: the unique size of the worker and of what it has started. `limit` is bytes, None for no limit.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._looked = self._measured = 0.0
        self._unsuspicious = limit or 0  # bytes resident up to which the limit cannot have been reached
        self.reason = RecycleReason.LARGE  # once it is beyond the limit

    def beyond_limit(self, began: float, now: float) -> bool:
        """Whether to ask for a successor, after jobs that ran between these monotonic seconds."""
        if self._limit is None or (now - began < SLOW and now - self._looked < EVERY):
            return False
        self._looked = now
        resident = kernel.resident_of_family(os.getpid())
        if resident <= self._limit or (resident <= self._unsuspicious and now - self._measured < _MEMORY_CLOSELY):
            return False
        self._measured = now
        used = kernel.memory_of_family(os.getpid())
        self._unsuspicious = resident + self._limit - used
        if is_far_over(used, self._limit):
            self.reason = RecycleReason.FAR_LARGE
        return used > self._limit
