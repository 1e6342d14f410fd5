"""Somebody's interest in a job, and how those wait who have one: in a thread, or on an event loop."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from supervisor.domain.errors import JobNotFound, StoreError

if TYPE_CHECKING:
    import asyncio

    from supervisor.domain.job import JobEvent
    from supervisor.ops.job_chunks import Feed

_LONGEST = 1.0  # seconds after which who waits makes sure that there is a thread: a program may have forked

_numbers = itertools.count()


class Bell:
    """For a thread that waits. Not a threading.Event: a signal handler that interrupts its `set` leaves it locked."""

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()  # its `put` is reentrant

    def ring(self) -> None:
        if self._rings.empty():
            self._rings.put(None)

    def wait(self, until: float | None = None) -> None:
        """Until it rings or that time, in monotonic seconds; at most a second."""
        left = _LONGEST if until is None else min(_LONGEST, max(0.0, until - time.monotonic()))
        with contextlib.suppress(Empty):
            self._rings.get(timeout=left)


async def rung(bell: asyncio.Event, until: float | None = None) -> None:
    """The same on an event loop: until it rings or that time, in seconds of the loop; at most a second."""
    import asyncio  # imported here: whoever calls this has it, and others need not

    longest = asyncio.get_running_loop().time() + _LONGEST
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(longest if until is None else min(longest, until)):
            await bell.wait()


class Subscription:
    """Somebody's interest in a job, kept as long as they keep this object. `ring` is called in the thread of the
    watcher when there are news; it must not block.

    With `only_end`, news are how the job is at first, and its end; of a job that was `just_made`, only its end. Who
    `follows` also hears of what the job emits, which is in `feed`.
    """

    def __init__(
        self,
        job_id: int,
        ring: Callable[[], object],
        *,
        only_end: bool = False,
        just_made: bool = False,
        follows: bool = False,
    ) -> None:
        self.job_id = job_id
        self.number = next(_numbers)
        self.event: JobEvent | None = None  # the last one told
        self.follows = follows
        self.feed: Feed | None = None
        self._ring = ring
        self._only_end = only_end
        self._just_made = just_made
        self._taken: JobEvent | None = None
        self._problems: deque[StoreError | JobNotFound] = deque(maxlen=1)

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # its event loop was closed
            self._ring()

    def tell(self, news: JobEvent | StoreError | None) -> None:
        """`None`: the job does not exist."""
        if news is None:
            self._problems.append(JobNotFound(self.job_id, deleted=self._just_made or self.event is not None))
        elif isinstance(news, StoreError):
            self._problems.append(news)
        else:
            self._problems.clear()
            self.event = news
            if not self._is_new(news):
                return
        self.ring()

    def take(self) -> JobEvent | None:
        """What is new; None for nothing. Raises StoreError, and JobNotFound if the job does not exist."""
        event = self.event
        if event is not None and self._is_new(event):
            self._taken = event
            return event
        try:
            problem = self._problems.pop()
        except IndexError:
            return None
        raise problem

    def _is_new(self, event: JobEvent) -> bool:
        """Compared with what was taken, not with what was told: so it cannot be lost between the two."""
        if event == self._taken:
            return False
        known = self._just_made or self._taken is not None
        return not (self._only_end and known) or event.status.finished
