"""Tells everybody who waits for jobs of a queue what becomes of them, with one thread for all.

The thread sleeps until somebody commits, as the maintainer does, and then looks at all these jobs at once. It is
started for the first listener, and ends a second after the last.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from supervisor.client.connections import Connections, forgetful, inherited
from supervisor.domain.errors import JobNotFound, StoreError

if TYPE_CHECKING:
    from supervisor.domain.job import JobEvent
    from supervisor.store.base import ChangeFeed, Producer

_LINGER = 1.0  # seconds without listeners after which the thread ends
_SAFETY = 1.0  # seconds between two checks without any hint: for a file that was replaced
_UNHINTED = 0.02  # seconds between two checks where there are no hints
_REST = 0.005  # seconds without checks after a change: beside a busy database, few more are seen
_REST_SHARE = 20  # times as long as a look took
_SHORT = 0.002  # seconds


class Listener:
    """Somebody who waits for news of a job. `ring` is called in the thread when there are any; it must not block."""

    def __init__(self, job_id: int, ring: Callable[[], object], event: JobEvent | None = None) -> None:
        self.job_id = job_id
        self.event = event  # the last one seen
        self._ring = ring
        self._news: deque[JobEvent | StoreError | JobNotFound] = deque(maxlen=1)  # the latest: taken in another thread

    def tell(self, news: JobEvent | StoreError | None) -> None:
        """`None`: there is no such job."""
        if news is not None and news == self.event:
            return
        if news is None:
            self._news.append(JobNotFound(self.job_id, deleted=self.event is not None))
        else:
            if not isinstance(news, StoreError):
                self.event = news
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


class Watcher:
    """The listeners of a queue, and the thread that tells them."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._watch: _Watch | None = None
        forgetful.add(self)
        self.forget()

    def forget(self) -> None:
        """Implements `connections.Forgetful`."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.abandon()
        # Never held for longer than a moment: event loops take it. Reentrant: the garbage collector may call `stop`.
        self._lock = threading.RLock()
        self._listeners: dict[int, set[Listener]] = {}
        self._new: set[Listener] = set()

    def events(self, job_id: int, deadline: float | None = None) -> Iterator[JobEvent]:
        """How the job is now, and each change, until it has finished.

        Raises JobNotFound and StoreError; TimeoutError after the deadline, in monotonic seconds, but not before the
        first event.
        """
        now = self._connections.using(self._connections.reader, lambda producer: producer.events([job_id]))
        if job_id not in now:
            raise JobNotFound(job_id)
        event, bell = now[job_id], threading.Event()
        listener = Listener(job_id, bell.set, event)
        try:
            while True:
                yield event
                if event.status.finished:
                    return
                while (news := listener.take()) is None:
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        raise TimeoutError
                    self.listen(listener)  # again, if the program has forked in between
                    bell.wait(left)
                    bell.clear()
                event = news
        finally:
            self.leave(listener)

    def listen(self, listener: Listener) -> None:
        """It is told how its job is now, and of every change."""
        with self._lock:
            others = self._listeners.setdefault(listener.job_id, set())
            if listener in others:
                return
            others.add(listener)
            self._new.add(listener)
            if self._watch is None:
                watch = _Watch(self, self._connections)
                try:
                    watch.start()
                except RuntimeError as error:  # too many threads
                    watch.abandon()
                    raise StoreError(f"jobs cannot be watched: {error}") from None
                self._watch = watch
            self._watch.wake()

    def leave(self, listener: Listener) -> None:
        with self._lock:
            others = self._listeners.get(listener.job_id, set())
            others.discard(listener)
            if not others:
                self._listeners.pop(listener.job_id, None)

    def close(self) -> None:
        """End the thread, unless somebody still listens."""
        watch = self.stop()
        if watch is not None and watch is not threading.current_thread():
            watch.join()

    def stop(self) -> _Watch | None:
        with self._lock:
            watch = self._watch
            if watch is None or self._listeners:
                return None
            self._watch = None
            watch.ended = True
            watch.wake()
        return watch

    # For its thread

    @property
    def listening(self) -> bool:
        return bool(self._listeners)

    def wanted(self, watch: _Watch, *, changed: bool) -> list[Listener]:
        """Whom to tell: everybody after a change, otherwise those who have been told nothing yet."""
        with self._lock:
            new, self._new = self._new, set()
            if watch is not self._watch:
                return []
            if changed:
                return [listener for others in self._listeners.values() for listener in others]
            return [listener for listener in new if listener in self._listeners.get(listener.job_id, ())]

    def is_over(self, watch: _Watch) -> bool:
        """Whether the thread is to end: nobody listens. The next listener starts another."""
        with self._lock:
            if self._listeners and not watch.ended:
                return False
            if watch is self._watch:
                self._watch = None
            return True


class _Watch(threading.Thread):
    """Daemonic: a program may end while somebody waits."""

    def __init__(self, watcher: Watcher, connections: Connections) -> None:
        super().__init__(name="supervisor_watch", daemon=True)
        self.ended = False
        self._watcher = watcher
        self._connections = connections
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._producer: Producer | None = None
        self._feed: ChangeFeed | None = None
        self._version = -1
        self._hinted = 0.0  # monotonic seconds of the last hint
        self._step = 0  # of the window of checks after it

    def wake(self) -> None:
        """To be called while it is the watcher's, under the watcher's lock."""
        os.eventfd_write(self._wakeup, 1)

    def run(self) -> None:
        try:
            while True:
                if self._watcher.listening and not self.ended:
                    self._check()
                    continue
                if self._feed is not None:
                    self._feed.pause()
                self._sleep(_LINGER, hints=False)
                if self._watcher.is_over(self):
                    break
        finally:
            self._forget_feed()
            os.close(self._wakeup)

    def abandon(self) -> None:
        """In a forked child, which has the descriptors but not the thread; or if the thread could not be started."""
        inherited.append(self._feed)
        os.close(self._wakeup)

    def _check(self) -> None:
        """Tell what is new, and sleep until the next check."""
        began = time.monotonic()
        try:
            changed, listeners, found = self._connections.using(self._connections.reader, self._look)
        except Exception as error:
            problem = error if isinstance(error, StoreError) else StoreError(f"jobs cannot be watched: {error!r}")
            for listener in self._watcher.wanted(self, changed=True):
                listener.tell(problem)
            self._forget_feed()
            self._sleep(_REST, hints=False)
            return
        for listener in listeners:
            listener.tell(found.get(listener.job_id))
        assert self._feed is not None
        if changed:
            self._feed.pause()
            self._sleep(max(_REST, _REST_SHARE * (time.monotonic() - began)), hints=False)
        if self._feed.resume() or self._sleep(self._until_next(self._feed)):
            self._hinted, self._step = time.monotonic(), 0

    def _look(self, producer: Producer) -> tuple[bool, list[Listener], dict[int, JobEvent]]:
        """Whether anything was committed, whom to tell, and what. Under the guard, like all use of SQLite here."""
        if self._feed is None or producer is not self._producer:  # it is that of another file, for example
            self._forget_feed()
            self._feed, self._producer = self._connections.engine.changes(), producer
            self._version = -1
        version = self._feed.version()
        changed, self._version = version != self._version, version
        listeners = self._watcher.wanted(self, changed=changed)
        found = producer.events({listener.job_id for listener in listeners}) if listeners else {}
        return changed, listeners, found

    def _until_next(self, feed: ChangeFeed) -> float:
        window, now = feed.window, time.monotonic()
        while self._step < len(window) and self._hinted + window[self._step] <= now:
            self._step += 1
        if self._step < len(window):
            return self._hinted + window[self._step] - now
        return _UNHINTED if feed.fileno() is None else _SAFETY

    def _sleep(self, seconds: float, *, hints: bool = True) -> bool:
        """Until somebody wakes it, or there is a hint: then returns True."""
        if seconds < _SHORT:
            time.sleep(seconds)  # polling counts in milliseconds
            return False
        waiting = select.poll()
        waiting.register(self._wakeup, select.POLLIN)
        feed = self._feed if hints else None
        if feed is not None and (descriptor := feed.fileno()) is not None:
            waiting.register(descriptor, select.POLLIN)
        waiting.poll(seconds * 1000)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)
        return feed is not None and feed.drain()

    def _forget_feed(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            with self._connections.reader.guard:
                feed.close()
