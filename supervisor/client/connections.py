"""The connections of a queue: opened on first use, shared by threads in turn, and never inherited by a fork."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

from supervisor.domain.errors import StoreError, StoreMoved, StoreUnavailable
from supervisor.domain.url import without_password
from supervisor.engine import open_engine
from supervisor.store.base import Engine, Producer

Answer = TypeVar("Answer")

_MOST_MOVES = 10


class Connections:
    """Three, so that a look at a job waits neither for a writer that waits for SQLite's lock nor for a long list."""

    def __init__(self, engine: Engine, *, create: bool) -> None:
        self.engine = engine
        self.create = create
        self.writer, self.reader, self.lister = Seat(), Seat(), Seat()

    def store(self, seat: Seat) -> Producer:
        """The seat's producer. The caller holds its guard."""
        if seat.producer is not None:
            if not seat.producer.gone():
                return seat.producer
            # For example a restored backup: new jobs belong in the new file.
            # A file that was only removed may come back, so no new one is created in its place.
            self.create = False
            seat.clear()
        seat.producer = self.engine.producer(create=self.create)
        return seat.producer

    def using(self, seat: Seat, work: Callable[[Producer], Answer]) -> Answer:
        """What `work` returns. Raises StoreError if the database cannot be used.

        If the jobs were moved to another one, that is used from now on.
        """
        with seat.guard:
            try:
                return work(self.store(seat))
            except StoreError as error:
                if not self.follows(seat, error):
                    raise
            return work(self.store(seat))

    def follows(self, seat: Seat, error: StoreError) -> bool:
        """Whether an error says that the jobs were moved: nothing was written, and now the seat's producer is there.

        The caller holds the guard.
        """
        if isinstance(error, StoreMoved):
            self._follow(seat, error.url)
            return True
        if seat.producer is None or isinstance(error, StoreUnavailable):
            return False
        moved_to = seat.producer.moved_to()
        if moved_to:
            self._follow(seat, moved_to)
        return bool(moved_to)

    def _follow(self, seat: Seat, url: str) -> None:
        where = without_password(self.engine.url)
        for _ in range(_MOST_MOVES):
            try:
                engine = open_engine(url)
                producer = engine.producer(create=False)
            except StoreMoved as error:
                url = error.url
                continue
            except StoreError as error:
                raise StoreError(f"{where}: the jobs were moved to {url}, which cannot be used here: {error}") from None
            if self.engine.url != url:  # other seats may follow later
                _warn(where, url)
            seat.clear()
            self.engine, self.create, seat.producer = engine, False, producer
            return
        raise StoreError(f"{where}: the jobs were moved too often to follow them; use {url}")

    def close(self) -> None:
        for seat in (self.writer, self.reader, self.lister):
            with seat.guard:
                seat.clear()

    def discard(self) -> None:
        """Close them while nobody else can use them."""
        for seat in (self.writer, self.reader, self.lister):
            seat.clear()


def _warn(old: str, new: str) -> None:
    """Somebody should correct the configuration, before the old database is deleted."""
    import logging  # only now: a queue loads little

    logging.getLogger("supervisor").warning("%s: the jobs were moved to %s; this program should use that URL", old, new)


class Seat:
    """One connection, opened on first use, and the guard for the threads that use it in turn."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may fork, or use the queue, while its thread is in the middle of a call.
        self.guard = threading.RLock()
        self.producer: Producer | None = None
        _seats.add(self)

    def clear(self) -> None:
        producer, self.producer = self.producer, None
        if producer is not None:
            producer.close()


class Forgetful(Protocol):
    """Has threads, which a forked child does not have."""

    def forget(self) -> None:
        """In the child: act as if they had not been started yet."""


# What a fork must not inherit: a guard that another thread holds, and connections that belong to its parent.
_seats: weakref.WeakSet[Seat] = weakref.WeakSet()
forgetful: weakref.WeakSet[Forgetful] = weakref.WeakSet()
inherited: list[object] = []  # never closed, nor collected: that could harm the parent's
_held: list[threading.RLock] = []
_LONGEST_WAIT = 0.5  # seconds that a fork waits for calls in other threads


def _before_fork() -> None:
    """Keep other threads out of SQLite during the fork: in the child, its locks would stay locked forever."""
    deadline = time.monotonic() + _LONGEST_WAIT
    _held.extend(
        seat.guard for seat in list(_seats) if seat.guard.acquire(timeout=max(0.0, deadline - time.monotonic()))
    )


def _after_fork_in_parent() -> None:
    try:
        _release()
    except BaseException:  # from a signal handler, such as Ctrl-C: Python drops it here; the guards must be released
        _release()
        raise


def _release() -> None:
    while _held:
        with contextlib.suppress(RuntimeError):  # it was released before the exception came
            _held[-1].release()
        _held.pop()


def _after_fork_in_child() -> None:
    _held.clear()
    for seat in list(_seats):
        seat.guard = threading.RLock()
        if seat.producer is not None:
            inherited.append(seat.producer)
            seat.producer = None
    for one in list(forgetful):
        one.forget()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
