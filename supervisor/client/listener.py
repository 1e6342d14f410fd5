"""Somebody who waits for news of a job, and the bell of a thread that waits.

The main thread may be interrupted between any two steps by a signal handler, which may raise, or use the queue itself.
So each step here leaves things as the next one needs them, and C code does what must be done in one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from supervisor.domain.errors import JobNotFound, StoreError

if TYPE_CHECKING:
    from supervisor.domain.job import JobEvent

_LONGEST = 1.0  # seconds: what a signal handler has kept somebody from telling is noticed after them


class Bell:
    """Rung by any thread, for one that waits. Not a threading.Event: a signal handler that interrupts its `set` leaves
    it locked if it raises, and waits for itself if it rings.
    """

    def __init__(self) -> None:
        # Held in a `with` statement while somebody waits with this bell: no exception keeps C code from releasing it.
        self.present = threading.Lock()
        self.thread = 0
        self.leads = False
        self._rings: SimpleQueue[None] = SimpleQueue()  # its `put` is reentrant

    @property
    def rung(self) -> bool:
        return not self._rings.empty()

    def ring(self) -> None:
        if self._rings.empty():
            self._rings.put(None)

    def wait(self, deadline: float | None = None) -> None:
        """Until it rings or that time, in monotonic seconds; at most a second, after which one looks for oneself."""
        left = _LONGEST if deadline is None else min(_LONGEST, max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(Empty):
            self._rings.get(timeout=left)

    def clear(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                self._rings.get_nowait()


class Listener:
    """Somebody who waits for news of a job. `ring` is called when there are any, in the thread of whoever leads; it
    must not block. With `only_end`, news are how the job is at first, and its end; of a job that was `just_made`, only
    its end. `present` is that of a thread's bell: the listener is gone as soon as it is free.
    """

    def __init__(
        self,
        job_id: int,
        ring: Callable[[], object],
        event: JobEvent | None = None,
        *,
        only_end: bool = False,
        just_made: bool = False,
        present: threading.Lock | None = None,
    ) -> None:
        self.job_id = job_id
        self.event = event  # the last one told
        self.just_made = just_made
        self._taken = event
        self._only_end = only_end
        self._ring = ring
        self._present = present
        self._problems: deque[StoreError | JobNotFound] = deque(maxlen=1)

    @property
    def gone(self) -> bool:
        """Whether its thread was interrupted before it could leave."""
        return self._present is not None and not self._present.locked()

    def tell(self, news: JobEvent | StoreError | None) -> None:
        """`None`: there is no such job."""
        if news is None:
            known = self.just_made or self.event is not None
            self._problems.append(JobNotFound(self.job_id, deleted=known))
        elif isinstance(news, StoreError):
            self._problems.append(news)
        else:
            self._problems.clear()
            self.event = news
            if not self._is_new(news):
                return
        # Also if it was told already and has not taken it: whoever told it may have been interrupted before the bell.
        if self._present is not None:
            self._ring()
        else:
            with contextlib.suppress(RuntimeError):  # its event loop was closed
                self._ring()

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
        known = self.just_made or self._taken is not None
        return not (self._only_end and known) or event.status.finished
