"""What wakes a sleeping worker: a job that may have arrived, and the supervisor's requests."""

from __future__ import annotations

import contextlib
import faulthandler
import select
import signal
from collections.abc import Callable
from os import eventfd_read, eventfd_write, getppid, write
from types import FrameType

from supervisor.system import kernel, signals
from supervisor.system.slot import Slot, State

Handler = Callable[[int, FrameType | None], None]
_CALM = 0.05  # seconds between two looks at a template that ends
SPARE_LOOK = 0.2  # seconds between two looks of a spare whose handler has blocked the signal that wakes it
FOREIGN = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2)


class Wakeups:
    """Handles the process's signals. `wake` is the pool's eventfd; `interrupt` is the handler of that signal.

    `handlers` are all that the worker has set, `needed` are those without which it does not learn what the supervisor
    asks for; `descriptor` is what signals write to.
    """

    def __init__(self, slot: Slot, wake: int, interrupt: Handler) -> None:
        self._slot = slot
        self._wake = wake
        self._inbox = signals.Inbox(obeyed=())
        self.descriptor = self._inbox.wakeup
        self.needed: dict[int, Handler] = {signals.DRAIN: self._note_drain, signals.INTERRUPT: interrupt}
        self.handlers: dict[int, Handler] = {**dict.fromkeys(FOREIGN, signals.swallow), **self.needed}
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        faulthandler.register(signals.DUMP_STACKS, all_threads=True)
        # EXCLUSIVE: one post wakes one worker, not all of the pool.
        self._poll = select.epoll()
        self._poll.register(self._wake, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        self._poll.register(self._inbox.fileno(), select.EPOLLIN)
        signals.unblock_all()

    def sleep(self, most: float) -> bool:
        """Until a job may have arrived, a signal has, or `most` seconds have passed. Returns whether a job may have."""
        posted = False
        for descriptor, _ in self._poll.poll(most):
            if descriptor == self._wake:
                with contextlib.suppress(BlockingIOError):
                    eventfd_read(self._wake)
                    posted = True
            elif descriptor == self._inbox.fileno():
                self._inbox.take()
            else:  # a handler's; it would wake us again and again
                with contextlib.suppress(OSError):
                    self._poll.unregister(descriptor)
        return posted

    def pause(self, seconds: float) -> None:
        """The same, but new jobs do not end it."""
        select.select([self._inbox.fileno()], [], [], seconds)
        self._inbox.take()

    def wake(self) -> None:
        """End a sleep or a pause; or the next one. May be called in any thread."""
        with contextlib.suppress(BlockingIOError):  # it is full: it will wake
            write(self.descriptor, b"\0")

    def wait_to_serve(self, news: int, *, spare: bool) -> None:
        """Do not work until the supervisor is ready to see this worker's end; usually it already is. Tell it, by its
        eventfd `news`, that this worker is set up. A spare takes no job until it is given a place: the slot decides,
        and a signal wakes. If its set-up has killed the template, it is not, and ends with it.
        """
        page, seconds = self._slot.page, 0.0005
        while not page.start and not page.drain:
            self.pause(seconds)
            seconds = min(seconds * 2, 0.1)
        while kernel.is_ending(getppid()):
            self.pause(_CALM)
        self._slot.state(State.SPARE if spare else State.IDLE)
        eventfd_write(news, 1)
        while spare and not page.serve and not page.drain:
            self.pause(SPARE_LOOK)

    def _note_drain(self, number: int, frame: FrameType | None) -> None:
        # The slot decides, and the signal only wakes: a handler may block signals.
        self._slot.page.drain = 1
