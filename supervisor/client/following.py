"""`Queue.follow` and `AsyncQueue.follow`: what becomes of a job, and what it emits.

The queue's watcher tells of both. What a job emits is in memory that its host's processes share.
"""

from __future__ import annotations

from collections.abc import Callable

from supervisor.client.subscription import Subscription
from supervisor.client.watcher import Watcher
from supervisor.domain.errors import JobNotFound, StoreError
from supervisor.domain.job import JobEvent
from supervisor.domain.job_stream import Follower, FollowEvent, Position, StreamEvent, follow_event


class Stream:
    """A `Listener` that follows a job, behind a position or from the start of its run. A slow one misses chunks, and is
    told how many, and states, but never the latest.
    """

    def __init__(self, watcher: Watcher, job_id: int, ring: Callable[[], object], at: Position | None = None) -> None:
        self.state: JobEvent | None = None
        self._follower = Follower(at)
        self._subscription = Subscription(watcher, job_id, ring, follows=True)

    @property
    def begun(self) -> bool:
        return self.state is not None

    @property
    def ended(self) -> bool:
        return self._follower.ended

    def look(self) -> bool:
        """Whether the job's state is known. Raises JobNotFound and StoreError."""
        before = self.state
        self.state = next(iter(self._subscription.news()), before)
        if before is None and self.state is not None and self._follower.at.token > self.state.token:
            self._follower.at = Position()  # of no run of this job: without it, its chunks would be left out
        return self.state is not None

    def news(self) -> list[StreamEvent]:
        self.look()  # before the chunks: what the job emitted until then is there
        state, feed = self.state, self._subscription.feed
        if state is None or feed is None:
            return []
        return self._follower.news(state, feed.behind(self._follower.at), elsewhere=feed.elsewhere)

    def news_or_trouble(self) -> list[StreamEvent]:
        """Also that the job was deleted, or that the database cannot be used."""
        try:
            return self.news()
        except JobNotFound:
            return self._follower.deleted()
        except StoreError as error:
            return self._follower.trouble(str(error))

    def shown(self, event: StreamEvent) -> FollowEvent:
        """An event for a program, with the latest state of the job."""
        assert self.state is not None  # or there were no events
        return follow_event(event, self.state)

    def leave(self) -> None:
        self._subscription.leave()
