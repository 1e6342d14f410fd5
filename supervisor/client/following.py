"""`Queue.follow` and `AsyncQueue.follow`: what becomes of a job, and what it emits.

The queue's watcher tells of both. What a job emits is in memory that its host's processes share.
"""

from __future__ import annotations

from collections.abc import Callable

from supervisor.client.subscription import Subscription
from supervisor.client.watcher import Watcher
from supervisor.domain.job import JobEvent
from supervisor.domain.job_stream import Follower, FollowEvent, Position


class Stream:
    """A `Listener` that follows a job, behind a position or from the start of its run. A slow one misses chunks, and is
    told how many, and states, but never the latest.
    """

    def __init__(self, watcher: Watcher, job_id: int, ring: Callable[[], object], at: Position | None = None) -> None:
        self._known: JobEvent | None = None
        self._follower = Follower(at)
        self._subscription = Subscription(watcher, job_id, ring, follows=True)

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
        self._known = next(iter(self._subscription.news()), before)
        if before is None and self._known is not None and self.at.token > self._known.token:
            self._follower.at = Position()  # of no run of this job: without it, its chunks would be left out
        return self.begun

    def news(self) -> list[FollowEvent]:
        self.look()  # before the chunks: what the job emitted until then is there
        feed = self._subscription.feed
        if self._known is None or feed is None:
            return []
        return self._follower.news(self._known, feed.behind(self.at), elsewhere=feed.elsewhere)

    def leave(self) -> None:
        self._subscription.leave()
