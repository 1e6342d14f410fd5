"""Looks at the jobs that somebody waits for, and sleeps until there may be something new."""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import TYPE_CHECKING

from supervisor.client.connections import Connections, inherited
from supervisor.domain.errors import StoreError
from supervisor.domain.polling import HintWindow, Pace

if TYPE_CHECKING:
    from supervisor.client.listener import Listener
    from supervisor.client.watcher import Watcher
    from supervisor.domain.job import JobEvent
    from supervisor.store.base import ChangeFeed, Producer

_LINGER = 1.0  # seconds without listeners after which the thread of event loops ends
_REST = 0.005  # seconds without checks after an error, doubled with each one in a row
_LONGEST_REST = 0.25
_SHORT = 0.002  # seconds


class Watch:
    """Used by whoever leads: by one thread at a time."""

    def __init__(self, watcher: Watcher, connections: Connections) -> None:
        self.ended = False  # it is not to be used any longer
        self._watcher = watcher
        self._connections = connections
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._producer: Producer | None = None
        self._feed: ChangeFeed | None = None
        self._version: int | None = None
        self._rest = 0.0  # seconds without checks that are due
        self._errors_rest = _REST  # the same after the next error
        self._pace = Pace()
        self._window: HintWindow | None = None

    def wake(self) -> None:
        """To be called while it is the watcher's, under the watcher's lock."""
        os.eventfd_write(self._wakeup, 1)

    def abandon(self) -> None:
        """In a forked child. Its descriptors stay open: a signal handler may have forked in the middle of a sleep."""
        self.ended = True
        inherited.extend((self, self._feed))
        self._feed = None

    def close(self) -> None:
        self._forget_feed()
        wakeup, self._wakeup = self._wakeup, -1
        if wakeup >= 0:
            os.close(wakeup)

    def begin(self) -> None:
        """Whoever begins to look tells everybody anew: the look before may have been interrupted."""
        self._version = None

    def pause(self) -> None:
        """For now, nobody looks."""
        self._version = None
        self._pause_feed()

    def _pause_feed(self) -> None:
        try:
            if self._feed is not None:
                self._feed.pause()
        except BaseException:  # of a signal handler: now it may seem to watch and not do so
            self._forget_feed()
            raise

    def look(self) -> None:
        """Tell what is new. Raises what a signal handler raises: that is nobody else's error."""
        began = time.thread_time()
        self._rest = 0.0
        try:
            changed, listeners, found = self._connections.using(self._connections.reader, self._look)
        except StoreError as error:
            self.fail(error)
            return
        except OSError as error:
            if error.errno is None:  # no system call has failed: a TimeoutError of a signal handler, for example
                raise
            self.fail(StoreError(f"jobs cannot be watched: {error}"))
            return
        self._errors_rest = _REST
        for listener in listeners:
            listener.tell(found.get(listener.job_id))
        if changed:  # those that find nothing are bounded by the feed's window
            self._rest = self._pace.rest_after(time.monotonic(), time.thread_time() - began)

    def fail(self, problem: StoreError) -> None:
        """Tell everybody, and rest."""
        if self.ended:
            return
        for listener in self._watcher.wanted(self, changed=True):
            listener.tell(problem)
        self._forget_feed()
        self._rest, self._errors_rest = self._errors_rest, min(self._errors_rest * 2, _LONGEST_REST)

    def _look(self, producer: Producer) -> tuple[bool, list[Listener], dict[int, JobEvent]]:
        """Whether anything was committed since the last look, whom to tell, and what. Under the guard, like all use of
        SQLite here.
        """
        if self._feed is None or self._window is None or producer is not self._producer:  # that of another file
            self._forget_feed()
            self._feed, self._producer = self._connections.engine.changes(ends=True), producer
            self._window = HintWindow(self._feed.window)
            self._version = None
        before, self._version = self._version, self._feed.version()
        if before != self._version:
            self._window.found()
        listeners = self._watcher.wanted(self, changed=before != self._version)
        found = producer.events({listener.job_id for listener in listeners}) if listeners else {}
        return before not in (None, self._version), listeners, found

    def sleep(self, until: float | None = None) -> None:
        """Until the next look; at most until then, in monotonic seconds."""
        if self._rest:
            self._pause_feed()
            self._sleep(self._rest, until)
        feed, window = self._feed, self._window
        if feed is None or window is None:
            return
        if feed.resume() or self._sleep(self._until_next(feed, window), until, feed):
            window.open(time.monotonic())

    def linger(self) -> None:
        """Nobody listens, but somebody may soon."""
        self._sleep(_LINGER)

    def _until_next(self, feed: ChangeFeed, window: HintWindow) -> float:
        now = time.monotonic()
        due = window.next_after(now)
        if due is not None:
            return due - now
        return feed.unhinted

    def _sleep(self, seconds: float, until: float | None = None, feed: ChangeFeed | None = None) -> bool:
        """Until somebody wakes it, or the feed has a hint: then returns True."""
        if until is not None:
            seconds = max(0.0, min(seconds, until - time.monotonic()))
        if seconds < _SHORT:
            time.sleep(seconds)  # polling counts in milliseconds
            return False
        waiting = select.poll()
        waiting.register(self._wakeup, select.POLLIN)
        if feed is not None and (descriptor := feed.fileno()) is not None:
            waiting.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in waiting.poll(seconds * 1000)}
        if self.ended:
            return False
        if self._wakeup in ready:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wakeup)
        return feed is not None and feed.fileno() in ready and feed.drain()

    def _forget_feed(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            with self._connections.reader.guard:
                feed.close()
