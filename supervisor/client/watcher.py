"""Tells everybody who waits for jobs of a queue what becomes of them, with one look at the database for all.

One of those who wait leads: its thread sleeps until somebody commits, as the maintainer does, looks at all these jobs
at once, and tells the others. When it has what it waits for, another one leads. So waiting starts no thread: a program
may fork afterwards. Only event loops, which must not block, have one that leads for them. It ends a second after the
last of their listeners.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from supervisor.client.connections import Connections, forgetful, inherited
from supervisor.client.listener import Listener
from supervisor.domain.errors import JobNotFound, StoreError
from supervisor.domain.hint_window import HintWindow
from supervisor.domain.pace import Pace

if TYPE_CHECKING:
    from supervisor.domain.job import JobEvent
    from supervisor.store.base import ChangeFeed, Producer

_LINGER = 1.0  # seconds without listeners after which the thread of event loops ends
_REST = 0.005  # seconds without checks after an error, doubled with each one in a row
_LONGEST_REST = 0.25
_SHORT = 0.002  # seconds


class Watcher:
    """The listeners of a queue, and who of them leads."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._watch: _Watch | None = None
        forgetful.add(self)
        self.forget()

    def forget(self) -> None:
        """Implements `connections.Forgetful`."""
        if self._watch is not None:
            self._watch.abandon()
        self._watch = None
        self._thread: threading.Thread | None = None
        # Held by whoever leads. Reentrant: a signal handler may wait for a job while its thread leads.
        self._lead = threading.RLock()
        # Never held for longer than a moment: event loops take it. Reentrant: the garbage collector may call `stop`.
        self._lock = threading.RLock()
        self._listeners: dict[int, set[Listener]] = {}
        self._new: set[Listener] = set()
        self._waiting: set[threading.Event] = set()  # the bells of those who wait and could lead

    def events(self, job_id: int) -> Iterator[JobEvent]:
        """How the job is now, and each change, until it has finished. Raises JobNotFound and StoreError."""
        event, bell = self._now(job_id), threading.Event()
        listener = Listener(job_id, bell.set, event)
        try:
            while True:
                yield event
                if event.status.finished:
                    return
                event = self._next(listener, bell)
        finally:
            self.leave(listener)

    def end(self, job_id: int, deadline: float | None = None, *, just_made: bool = False) -> JobEvent:
        """How the job ends. Of one that was `just_made`, nothing is asked before.

        Raises JobNotFound and StoreError; TimeoutError after the deadline, in monotonic seconds, but not without a look
        at a job that others have made.
        """
        event, bell = None if just_made else self._now(job_id), threading.Event()
        listener = Listener(job_id, bell.set, event, only_end=True, just_made=just_made)
        try:
            while event is None or not event.status.finished:
                event = self._next(listener, bell, deadline)
            return event
        finally:
            self.leave(listener)

    def _now(self, job_id: int) -> JobEvent:
        now = self._connections.using(self._connections.reader, lambda producer: producer.events([job_id]))
        if job_id not in now:
            raise JobNotFound(job_id)
        return now[job_id]

    def _next(self, listener: Listener, bell: threading.Event, deadline: float | None = None) -> JobEvent:
        try:
            while (news := listener.take()) is None:
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError
                self.listen(listener)  # again, if the program has forked in between
                self._wait(bell, deadline)
            return news
        finally:
            self._pass_on()

    def _wait(self, bell: threading.Event, deadline: float | None) -> None:
        """Until the bell rings or the time is up. Leads if nobody does."""
        lead, waiting = self._lead, self._waiting
        waiting.add(bell)  # before it tries to lead: who stops leading rings one of these
        try:
            if lead.acquire(blocking=False):
                try:
                    self._look(bell, deadline)
                finally:
                    lead.release()
            else:
                bell.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        finally:
            waiting.discard(bell)
        bell.clear()

    def _look(self, bell: threading.Event, deadline: float | None) -> None:
        watch = self._opened()
        try:
            while True:
                watch.look()
                if bell.is_set() or watch.ended or (deadline is not None and time.monotonic() >= deadline):
                    return
                watch.sleep(deadline)
        finally:
            watch.pause()

    def _pass_on(self) -> None:
        """If nobody leads, one of those who wait is to do it."""
        if self._lead.acquire(blocking=False):  # otherwise who leads does this later
            self._lead.release()
            bell = next(iter(self._waiting.copy()), None)
            if bell is not None:
                bell.set()

    def _opened(self) -> _Watch:
        with self._lock:
            if self._watch is None:
                try:
                    self._watch = _Watch(self, self._connections)
                except OSError as error:
                    raise StoreError(f"jobs cannot be watched: {error.strerror}") from None
            return self._watch

    def listen(self, listener: Listener) -> None:
        """It is told how its job is now, and of every change, while somebody leads."""
        with self._lock:
            others = self._listeners.setdefault(listener.job_id, set())
            if listener in others:
                return
            others.add(listener)
            self._new.add(listener)
            if self._watch is not None:
                self._watch.wake()  # also for a job that was just made: it may have ended already

    def attend(self, listener: Listener) -> None:
        """`listen` for somebody who cannot lead: a thread does."""
        with self._lock:
            self.listen(listener)
            if self._thread is None:
                thread = threading.Thread(
                    target=self._serve, args=(self._opened(),), name="supervisor_watch", daemon=True
                )  # daemonic: a program may end while somebody waits
                try:
                    thread.start()
                except RuntimeError as error:  # too many threads
                    raise StoreError(f"jobs cannot be watched: {error}") from None
                self._thread = thread

    def _serve(self, watch: _Watch) -> None:
        with self._lead:
            try:
                while True:
                    if self._listeners and not watch.ended:
                        watch.look()
                        watch.sleep()
                        continue
                    watch.pause()
                    if self._listeners and not watch.ended:
                        continue  # since then somebody has come, who relied on a look
                    if not watch.ended:
                        watch.linger()
                    if self._is_over(watch):
                        break
            finally:
                watch.close()
        self._pass_on()

    def _is_over(self, watch: _Watch) -> bool:
        """Whether the thread is to end: nobody listens. The next listener starts another."""
        with self._lock:
            if self._listeners and not watch.ended:
                return False
            if watch is self._watch:
                self._watch = self._thread = None
            watch.ended = True
            return True

    def leave(self, listener: Listener) -> None:
        with self._lock:
            others = self._listeners.get(listener.job_id, set())
            others.discard(listener)
            if not others:
                self._listeners.pop(listener.job_id, None)

    def close(self) -> None:
        """Close what is open, unless somebody still listens."""
        thread = self.stop()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def stop(self) -> threading.Thread | None:
        """`close` without waiting for the thread, which is returned."""
        with self._lock:
            if self._listeners or self._watch is None:
                return None
            thread, watch = self._thread, self._watch
            self._thread = self._watch = None
            watch.ended = True
            watch.wake()
        if thread is None:
            watch.close()
        return thread

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


class _Watch:
    """Looks at the jobs, and sleeps until there may be something new. Used by one thread at a time."""

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
        os.close(self._wakeup)

    def pause(self) -> None:
        """For now, nobody looks. Whoever does next tells everybody anew: a look may have been interrupted."""
        self._version = None
        if self._feed is not None:
            self._feed.pause()

    def look(self) -> None:
        """Tell what is new."""
        began = time.thread_time()
        self._rest = 0.0
        try:
            changed, listeners, found = self._connections.using(self._connections.reader, self._look)
        except Exception as error:
            if self.ended:
                return
            problem = error if isinstance(error, StoreError) else StoreError(f"jobs cannot be watched: {error!r}")
            for listener in self._watcher.wanted(self, changed=True):
                listener.tell(problem)
            self._forget_feed()
            self._rest, self._errors_rest = self._errors_rest, min(self._errors_rest * 2, _LONGEST_REST)
            return
        self._errors_rest = _REST
        for listener in listeners:
            listener.tell(found.get(listener.job_id))
        if changed:  # those that find nothing are bounded by the feed's window
            self._rest = self._pace.rest_after(time.monotonic(), time.thread_time() - began)

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
            if self._feed is not None:
                self._feed.pause()
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
