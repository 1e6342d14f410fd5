"""Tells everybody who waits for jobs of a queue what becomes of them, with one look at the database for all.

One of those who wait leads: its thread sleeps until somebody commits, as the maintainer does, looks at all these jobs
at once, and tells the others. When it has what it waits for, another one leads. So waiting starts no thread: a program
may fork afterwards. Only event loops, which must not block, have one that leads for them. It ends a second after the
last of their listeners.

Those who wait stand in line, and the first of them leads: nobody has to give anything back in the end. Whoever a signal
handler has thrown out of the line is seen to be gone, and whoever waits looks again at least every second.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from supervisor.client.connections import Connections, Guard, forgetful
from supervisor.client.listener import Bell, Listener
from supervisor.client.watch import Watch
from supervisor.domain.errors import JobNotFound, StoreError

if TYPE_CHECKING:
    from supervisor.domain.job import JobEvent

_ASIDE = 0.005  # seconds between two looks of a signal handler


class Watcher:
    """The listeners of a queue, and who of them leads."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._watch: Watch | None = None
        forgetful.add(self)
        self.forget()

    def forget(self) -> None:
        """Implements `connections.Forgetful`."""
        if self._watch is not None:
            self._watch.abandon()
        self._watch = None
        self._thread: threading.Thread | None = None
        # Not held for longer than a moment, unless a signal handler interrupts that: event loops take it. Reentrant:
        # the handler and the garbage collector may use the queue. Neither looking nor waiting needs it.
        self._lock = Guard()
        self._listeners: set[Listener] = set()
        self._new: deque[Listener] = deque()
        self._waiting: dict[Bell, None] = {}  # the line, in order; the first who is present leads

    def events(self, job_id: int) -> Iterator[JobEvent]:
        """How the job is now, and each change, until it has finished. Raises JobNotFound and StoreError."""
        event, bell = self._now(job_id), Bell()
        with bell.present:
            listener = Listener(job_id, bell.ring, event, present=bell.present)
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
        event, bell = None if just_made else self._now(job_id), Bell()
        with bell.present:
            listener = Listener(job_id, bell.ring, event, only_end=True, just_made=just_made, present=bell.present)
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

    def _next(self, listener: Listener, bell: Bell, deadline: float | None = None) -> JobEvent:
        bell.thread = threading.get_ident()
        try:
            while (news := listener.take()) is None:
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError
                self.listen(listener)  # again, if the program has forked in between
                self._wait(bell, deadline)
            return news
        finally:
            self._waiting.pop(bell, None)
            self._pass_on()

    def _wait(self, bell: Bell, deadline: float | None) -> None:
        """Until the bell rings or the time is up, or for a second. Leads if it is the first in line."""
        bell.leads = False
        self._waiting.setdefault(bell)  # it keeps its place until there is news for it
        first = self._first() or bell
        if self._connections.reader.interrupted or (first is not bell and first.thread == bell.thread):
            self._look_aside(bell, deadline)
        elif first is bell:
            self._look(bell, deadline)
        else:
            bell.wait(deadline)
        bell.clear()

    def _first(self) -> Bell | None:
        """Whose turn it is to lead."""
        for bell in list(self._waiting):
            if bell.present.locked():
                return bell
            self._waiting.pop(bell, None)
        return None

    def _look(self, bell: Bell, deadline: float | None) -> None:
        bell.leads = True
        watch = self._opened()
        try:
            watch.begin()
            while True:
                watch.look()
                if bell.rung or watch.ended or (deadline is not None and time.monotonic() >= deadline):
                    return
                watch.sleep(deadline)
        finally:
            watch.pause()

    def _look_aside(self, bell: Bell, deadline: float | None) -> None:
        """For a signal handler that has interrupted whoever leads, or keeps it from looking: a look for all without the
        watch, which may be in any state. Then a pause.
        """
        listeners = self._present()
        ids = {listener.job_id for listener in listeners}
        found = self._connections.using(self._connections.reader, lambda producer: producer.events(ids))
        for listener in listeners:
            listener.tell(found.get(listener.job_id))
        pause = time.monotonic() + _ASIDE
        bell.wait(pause if deadline is None else min(pause, deadline))

    def _pass_on(self) -> None:
        """Somebody has left the line: the first one is to lead, unless it does; or, if a signal handler has interrupted
        its thread, and waits, too, that one is to look instead of it.
        """
        first = self._first()
        if first is not None and not first.leads:
            for bell in list(self._waiting):
                if bell.thread == first.thread:
                    bell.ring()

    def _opened(self) -> Watch:
        if (watch := self._watch) is not None:
            return watch
        with self._lock:
            if self._watch is None:
                try:
                    self._watch = Watch(self, self._connections)
                except OSError as error:
                    raise StoreError(f"jobs cannot be watched: {error.strerror}") from None
            return self._watch

    def listen(self, listener: Listener) -> None:
        """It is told how its job is now, and of every change, while somebody leads."""
        with self._lock:
            if listener in self._listeners:
                return
            self._listeners.add(listener)
            self._new.append(listener)
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
                except (RuntimeError, KeyError) as error:
                    if error.__context__ is not None:  # a signal handler has raised in the middle of threading's code
                        raise error.__context__ from None
                    raise StoreError(f"jobs cannot be watched: {error}") from None  # too many threads

    def _serve(self, watch: Watch) -> None:
        with self._lock:  # it says so itself: whoever has started it may have been interrupted just then
            if watch is not self._watch or self._thread is not None:
                return
            self._thread = threading.current_thread()
        bell = Bell()
        with bell.present:
            self._waiting[bell] = None
            try:
                while self._first() is not bell:
                    bell.wait()
                    bell.clear()
                bell.leads = True
                watch.begin()
                while True:
                    if self._listeners and not watch.ended:
                        self._look_once(watch)
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
                self._waiting.pop(bell, None)
        self._pass_on()

    def _look_once(self, watch: Watch) -> None:
        """In a thread without a caller who could be told of an unexpected error. Nor do signal handlers run there."""
        try:
            watch.look()
        except Exception as error:
            watch.fail(StoreError(f"jobs cannot be watched: {error!r}"))

    def _is_over(self, watch: Watch) -> bool:
        """Whether the thread is to end: nobody listens. The next listener starts another."""
        with self._lock:
            if self._listeners and not watch.ended:
                return False
            if watch is self._watch:
                self._watch = self._thread = None
            watch.ended = True
            return True

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)

    def _present(self) -> list[Listener]:
        listeners = self._listeners.copy()
        gone = {listener for listener in listeners if listener.gone}
        self._listeners.difference_update(gone)
        return [listener for listener in listeners if listener not in gone]

    def close(self) -> None:
        """Close what is open, unless somebody still listens."""
        thread = self.stop()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def stop(self) -> threading.Thread | None:
        """`close` without waiting for the thread, which is returned."""
        with self._lock:
            if self.listening or self._watch is None:
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
        return bool(self._present())

    def wanted(self, watch: Watch, *, changed: bool) -> list[Listener]:
        """Whom to tell: everybody after a change, otherwise those who have been told nothing yet."""
        new = set()
        with contextlib.suppress(IndexError):
            while True:
                new.add(self._new.popleft())
        if watch is not self._watch:
            return []
        return self._present() if changed else [listener for listener in new if listener in self._listeners]
