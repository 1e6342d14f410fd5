"""Somebody's interest in a job: in its states, or also in what it emits; and how those in a thread wait for it."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from supervisor.domain.errors import JobNotFound, StoreError
from supervisor.domain.job_stream import Follower, FollowEvent, Position

if TYPE_CHECKING:
    from supervisor.domain.job import JobEvent
    from supervisor.ops.job_chunks import Feed

LONGEST_WAIT = 1.0  # seconds after which who waits makes sure that there is a thread: a program may have forked

_numbers = itertools.count()


class Watched(Protocol):
    """What watches jobs: the watcher."""

    def subscribe(self, wanted: Subscription) -> None: ...

    def leave(self, wanted: Subscription) -> None: ...


class Subscription:
    """Somebody's interest in the states of a job, kept as long as they keep this object. `ring` is called in the thread
    of the watcher when there are news; it must not block.

    With `only_end`, news are how the job is at first, and its end; of a job that was `just_made`, only its end.
    """

    def __init__(
        self,
        watcher: Watched,
        job_id: int,
        ring: Callable[[], object],
        *,
        only_end: bool = False,
        just_made: bool = False,
    ) -> None:
        self.job_id = job_id
        self.number = next(_numbers)
        self.event: JobEvent | None = None  # the last one told
        self._watcher = watcher
        self._ring = ring
        self._only_end = only_end
        self._just_made = just_made
        self._taken: JobEvent | None = None
        self._problems: deque[StoreError | JobNotFound] = deque(maxlen=1)

    @property
    def begun(self) -> bool:
        """Whether there was a look at the job: nobody's time is up before that."""
        return self._just_made or self.event is not None

    @property
    def ended(self) -> bool:
        """Whether there will be no more news."""
        return self._taken is not None and self._taken.status.finished

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

    def news(self) -> Sequence[Any]:
        """What is new. Raises JobNotFound and StoreError."""
        event = self.state()
        return () if event is None else (event,)

    def state(self) -> JobEvent | None:
        """The state, if that is new. Raises StoreError, and JobNotFound if the job does not exist."""
        event = self._take()
        if event is None:
            self._watcher.subscribe(self)  # again, if the program has forked in between
            event = self._take()
        return event

    def _take(self) -> JobEvent | None:
        event = self.event
        if event is not None and self._is_new(event):
            self._taken = event
            return event
        try:
            problem = self._problems.pop()
        except IndexError:
            return None
        raise problem

    def next_look(self, deadline: float | None) -> float | None:
        """Until when to wait for the bell; both are monotonic seconds. Raises TimeoutError after the deadline."""
        if deadline is None or not self.begun:
            return None
        if time.monotonic() >= deadline:  # also while the bell rings all the time
            raise TimeoutError
        return deadline

    def leave(self) -> None:
        self._watcher.leave(self)

    def _is_new(self, event: JobEvent) -> bool:
        """Compared with what was taken, not with what was told: so it cannot be lost between the two."""
        if event == self._taken:
            return False
        known = self._just_made or self._taken is not None
        return not (self._only_end and known) or event.status.finished


class Stream(Subscription):
    """Also in what the job emits, behind a position or from the start of its run. A slow one misses chunks, and is told
    how many, and states, but never the latest.
    """

    def __init__(self, watcher: Watched, job_id: int, ring: Callable[[], object], at: Position | None = None) -> None:
        super().__init__(watcher, job_id, ring)
        self.feed: Feed | None = None  # set by the watcher
        self._known: JobEvent | None = None
        self._follower = Follower(at)

    @property
    def at(self) -> Position:
        return self._follower.at

    @property
    def begun(self) -> bool:
        return self._known is not None

    @property
    def ended(self) -> bool:
        return self._follower.ended

    def look(self) -> bool:
        """Whether the job's state is known. Raises JobNotFound and StoreError."""
        before = self._known
        self._known = self.state() or before
        if before is None and self._known is not None and self.at.token > self._known.token:
            self._follower.at = Position()  # of no run of this job: without it, its chunks would be left out
        return self.begun

    def news(self) -> Sequence[FollowEvent]:
        self.look()  # before the chunks: what the job emitted until then is there
        if self._known is None or self.feed is None:
            return ()
        return self._follower.news(self._known, self.feed.behind(self.at), elsewhere=self.feed.elsewhere)


def deadline_after(seconds: float | None) -> float | None:
    """In monotonic seconds; None: never."""
    return None if seconds is None else time.monotonic() + seconds


class Bell:
    """For a thread that waits. Not a threading.Event: a signal handler that interrupts its `set` leaves it locked."""

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()  # its `put` is reentrant

    def ring(self) -> None:
        if self._rings.empty():
            self._rings.put(None)

    def wait(self, until: float | None = None) -> None:
        """Until it rings or that time, in monotonic seconds; at most a second."""
        left = LONGEST_WAIT if until is None else min(LONGEST_WAIT, max(0.0, until - time.monotonic()))
        with contextlib.suppress(Empty):
            self._rings.get(timeout=left)


def heard(wanted: Subscription, bell: Bell, deadline: float | None) -> Iterator[Any]:
    """The news of a subscription until it has ended. Raises TimeoutError after the deadline, in monotonic seconds, and
    what `news` raises.
    """
    try:
        while True:
            yield from wanted.news()
            if wanted.ended:
                return
            bell.wait(wanted.next_look(deadline))
    finally:
        wanted.leave()
