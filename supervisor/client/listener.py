"""Somebody who waits for news of a job."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from supervisor.domain.errors import JobNotFound, StoreError

if TYPE_CHECKING:
    from supervisor.domain.job import JobEvent


class Listener:
    """Somebody who waits for news of a job. `ring` is called when there are any, in the thread of whoever leads; it
    must not block. With `only_end`, news are how the job is at first, and its end; of a job that was `just_made`, only
    its end.
    """

    def __init__(
        self,
        job_id: int,
        ring: Callable[[], object],
        event: JobEvent | None = None,
        *,
        only_end: bool = False,
        just_made: bool = False,
    ) -> None:
        self.job_id = job_id
        self.event = event  # the last one seen
        self.just_made = just_made
        self._only_end = only_end
        self._ring = ring
        self._news: deque[JobEvent | StoreError | JobNotFound] = deque(maxlen=1)  # the latest: taken in another thread

    def tell(self, news: JobEvent | StoreError | None) -> None:
        """`None`: there is no such job."""
        if news is not None and news == self.event:
            return
        known = self.just_made or self.event is not None
        if news is None:
            self._news.append(JobNotFound(self.job_id, deleted=known))
        else:
            if not isinstance(news, StoreError):
                self.event = news
                if self._only_end and known and not news.status.finished:
                    return
            self._news.append(news)
        with contextlib.suppress(RuntimeError):  # its event loop was closed
            self._ring()

    def take(self) -> JobEvent | None:
        """What is new; None for nothing. Raises StoreError, and JobNotFound if the job does not exist."""
        try:
            news = self._news.pop()
        except IndexError:
            return None
        if isinstance(news, Exception):
            raise news
        return news
