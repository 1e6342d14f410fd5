"""One thread a queue tells everybody who waits for jobs what becomes of them, with one look at the database for all.

Whoever waits has a subscription. The thread starts with the first one, sleeps until somebody commits, and ends a second
after the last one has gone. Those who wait share nothing with it that anybody could hold: so a signal handler may use
the queue, or raise, in the middle of any step here.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import select
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING

from supervisor.client.connections import Connections, Seat, forgetful, inherited
from supervisor.client.subscription import Stream, Subscription
from supervisor.domain.errors import StoreError
from supervisor.domain.polling import Pace

if TYPE_CHECKING:
    from supervisor.domain.job import JobEvent
    from supervisor.ops.job_chunks import Feeds
    from supervisor.store.base import ChangeFeed, Producer

_LINGER = 1.0  # seconds without subscriptions after which the thread ends
_REST = 0.005  # seconds without checks after an error, doubled with each one in a row
_LONGEST_REST = 0.25
_SHORT = 0.002  # seconds


class Watcher:
    """The subscriptions of a queue, and its thread."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.seat = Seat()  # the thread's own: those who wait for it may be in the middle of a call with another one
        self._look: _Look | None = None
        forgetful.add(self)
        self.forget()

    def forget(self) -> None:
        """Implements `connections.Forgetful`."""
        inherited.append(self._look)
        self._look = None
        self._serving = threading.Lock()  # held by the thread while there is one
        self._begun = [True]  # empty from the start of a thread until it runs
        self._subscriptions: dict[int, weakref.ref[Subscription]] = {}
        self._new: deque[int] = deque()
        self._stopping = False

    def subscribe(self, wanted: Subscription) -> None:
        """From now on it is told how its job is, and of every change. Does nothing if it is already. Raises StoreError
        if there can be no thread.
        """
        if wanted.number not in self._subscriptions:
            self._subscriptions[wanted.number] = weakref.ref(wanted)
            self._new.append(wanted.number)
            if (look := self._look) is not None:
                look.wake()  # also for a job that was just made: it may have ended already
        if not self._serving.locked() and self._begun:
            begun: list[bool] = []
            try:  # none of threading's threads: a signal handler may interrupt who holds its locks
                _thread.start_new_thread(self._serve, (begun,))
            except RuntimeError as error:
                raise StoreError(f"jobs cannot be watched: {error}") from None  # too many threads
            self._begun = begun

    def leave(self, wanted: Subscription) -> None:
        self._subscriptions.pop(wanted.number, None)

    @property
    def listening(self) -> bool:
        return any(reference() is not None for reference in self._subscriptions.copy().values())

    def present(self) -> list[Subscription]:
        """Those whose owners still keep them."""
        found = []
        for number, reference in self._subscriptions.copy().items():  # others add to it meanwhile
            if (one := reference()) is not None:
                found.append(one)
            else:
                self._subscriptions.pop(number, None)
        return found

    def added(self) -> list[Subscription]:
        """Those that have been told nothing yet."""
        numbers = [self._new.popleft() for _ in range(len(self._new))]
        found = (self._subscriptions.get(number) for number in numbers)
        return [one for reference in found if reference is not None and (one := reference()) is not None]

    def stop(self) -> None:
        """The thread is to end, unless somebody listens."""
        self._stopping = True
        if (look := self._look) is not None:
            look.wake()

    def close(self) -> None:
        """`stop`, and wait for that."""
        self.stop()
        while self._serving.locked() and not self.listening:
            time.sleep(0.001)

    def _serve(self, begun: list[bool]) -> None:
        """The thread. Who subscribes while it ends is seen by it, or sees that there is none; a second one ends."""
        begun.append(True)
        while self.listening and self._serving.acquire(blocking=False):
            self._stopping = False
            try:
                with contextlib.closing(_Look(self, self._connections)) as look:
                    self._look = look
                    self._watch(look)
            except Exception as error:
                self._tell_all(StoreError(f"jobs cannot be watched: {error}"))
                time.sleep(_LONGEST_REST)
            finally:
                self._look = None
                self._serving.release()

    def _watch(self, look: _Look) -> None:
        while True:
            if self.listening:
                try:
                    look.look()
                except StoreError as error:
                    look.fail()
                    self._tell_all(error)
                look.sleep()
            else:
                look.idle(0.0 if self._stopping else _LINGER)
                if not self.listening:
                    return

    def _tell_all(self, problem: StoreError) -> None:
        for one in self.present():
            one.tell(problem)


class _Look:
    """What the thread looks with, and how it sleeps until there may be something new."""

    _wakeup: tuple[int, ...] = ()  # a pipe, once it is there

    def __init__(self, watcher: Watcher, connections: Connections) -> None:
        self._watcher = watcher
        self._connections = connections
        self._seat = watcher.seat
        self._wakeup = os.pipe()
        for end in self._wakeup:
            os.set_blocking(end, False)
        self._producer: Producer | None = None
        self._feed: ChangeFeed | None = None
        self._emitted: Feeds | None = None
        self._version: int | None = None
        self._rest = 0.0  # seconds without checks that are due
        self._errors_rest = _REST  # the same after the next error
        self._pace = Pace()

    def __del__(self) -> None:
        for end in self._wakeup:
            os.close(end)  # not before: somebody may be about to wake it

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is full: the thread has not read it yet
            os.write(self._wakeup[1], b"x")

    def close(self) -> None:
        self._forget_feed()
        with self._seat.guard:
            self._seat.clear()
        if self._emitted is not None:
            self._emitted.close()

    def look(self) -> None:
        """Tell what is new. Raises StoreError."""
        began, self._rest = time.thread_time(), 0.0
        try:
            changed, told, found = self._connections.using(self._seat, self._read)
        except OSError as error:
            raise StoreError(f"jobs cannot be watched: {error}") from error
        self._errors_rest = _REST
        for one in told:
            one.tell(found.get(one.job_id))
        if changed:  # those that find nothing are bounded by the feed
            self._rest = self._pace.rest_after(time.monotonic(), time.thread_time() - began)

    def _read(self, producer: Producer) -> tuple[bool, list[Subscription], dict[int, JobEvent]]:
        """Whether anything was committed since the last look, whom to tell, and what. Under the guard, like all use of
        SQLite here.
        """
        if self._feed is None or producer is not self._producer:  # that of another file
            self._forget_feed()
            self._feed, self._producer = self._connections.engine.changes(ends=True), producer
            self._version = None
        before, self._version = self._version, self._feed.version()
        changed = before != self._version
        new = self._watcher.added()
        told = self._watcher.present() if changed else new
        found = producer.events({one.job_id for one in told}) if told else {}
        if following := [one for one in told if isinstance(one, Stream) and one.job_id in found]:
            self._read_chunks(following, found, producer)
        return changed and before is not None, told, found

    def _read_chunks(self, following: list[Stream], found: dict[int, JobEvent], producer: Producer) -> None:
        """Before those who follow jobs are told of a change: what was emitted until then."""
        if self._emitted is None:
            from supervisor.ops.job_chunks import Feeds  # imported here: few programs follow jobs

            self._emitted = Feeds()
        for one in following:
            one.feed = self._emitted.feed(one.job_id)
        self._emitted.update({one.job_id: found[one.job_id] for one in following}, producer.operations)

    def fail(self) -> None:
        """The next look comes after a rest."""
        self._forget_feed()
        self._rest, self._errors_rest = self._errors_rest, min(self._errors_rest * 2, _LONGEST_REST)

    def sleep(self) -> None:
        """Until the next look."""
        if self._rest:
            self._pause_feed()
            self._sleep(self._rest)
        feed = self._feed
        if feed is not None and not feed.resume():
            self._sleep(feed.unhinted, feed)

    def idle(self, seconds: float) -> None:
        """Nobody listens, but somebody may soon."""
        self._version = None
        self._pause_feed()
        self._sleep(seconds)

    def _sleep(self, seconds: float, feed: ChangeFeed | None = None) -> None:
        """Until somebody wakes it, or the feed has a hint. Meanwhile, what jobs emit is read."""
        if seconds < _SHORT:
            time.sleep(seconds)  # polling counts in milliseconds
            return
        until = time.monotonic() + seconds
        waiting = select.poll()
        waiting.register(self._wakeup[0], select.POLLIN)
        if feed is not None and (descriptor := feed.fileno()) is not None:
            waiting.register(descriptor, select.POLLIN)
        while (left := until - time.monotonic()) > 0:
            step = left if self._emitted is None else min(left, self._emitted.rest)
            ready = {descriptor for descriptor, _ in waiting.poll(step * 1000)}
            if self._wakeup[0] in ready:
                os.read(self._wakeup[0], 4096)
            if feed is not None and feed.fileno() in ready:
                feed.drain()
            if ready:
                return
            emitted = set() if self._emitted is None else self._emitted.look()
            for one in self._watcher.present() if emitted else ():
                if isinstance(one, Stream) and one.job_id in emitted:
                    one.ring()

    def _pause_feed(self) -> None:
        if self._feed is not None:
            self._feed.pause()

    def _forget_feed(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            with self._seat.guard:
                feed.close()
