"""The connections of a queue: opened on first use, shared by threads in turn, and never inherited by a fork."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

from supervisor.domain.errors import QueueError, StoreError, StoreMoved, StoreUnavailable
from supervisor.domain.text import without_password
from supervisor.engine import open_engine
from supervisor.store.base import Engine, Producer

Answer = TypeVar("Answer")
Put = tuple[int, bool]
"""The id of a job, and whether it is new."""

WRITER, READER, LISTER = "writer", "reader", "lister"  # the connections of a queue, and their threads

_MOST_MOVES = 10


if sys.version_info[:2] == (3, 14):

    class Guard(type(threading.RLock())):  # type: ignore[misc]  # its class has no public name
        """A lock that `with` releases whatever a signal handler raises. Python 3.14 runs handlers between the call of
        C's `__enter__` and the block, and then forgets the lock: gh-148874.
        """

        def __enter__(self) -> bool:
            [acquired] = map(self.acquire, (True,))  # unlike a call, no handler runs after this
            return acquired
else:
    Guard = threading.RLock


class NotReentrant(QueueError):
    """A signal handler has interrupted a call of its thread that writes, and wanted to write, too. Nothing was written.

    No StoreError: that would tell everybody who waits that the database cannot be used.
    """

    def __init__(self) -> None:
        super().__init__(
            "this signal handler has interrupted a call that writes to the same queue, and cannot write in the middle "
            "of it; let it note what is to be done, and do that after the call"
        )


class Connections:
    """Three, so that a look at a job waits neither for a writer that waits for SQLite's lock nor for a long list."""

    def __init__(self, engine: Engine, *, create: bool, patience: float) -> None:
        self.engine = engine
        self.create = create
        self.patience = patience  # seconds to wait for other writers
        self.writer, self.reader, self.lister = Seat(writes=True), Seat(), Seat()

    def store(self, seat: Seat) -> Producer:
        """The seat's producer. The caller holds its guard."""
        if seat.producer is not None:
            if not seat.producer.gone():
                return seat.producer
            # For example a restored backup: new jobs belong in the new file.
            # A file that was only removed may come back, so no new one is created in its place.
            self.create = False
            seat.clear()
        seat.producer = self.engine.producer(self.patience, create=self.create)
        return seat.producer

    def using(self, seat: Seat, work: Callable[[Producer], Answer]) -> Answer:
        """What `work` returns. Raises StoreError if the database cannot be used.

        If the jobs were moved to another one, that is used from now on. A signal handler that has interrupted a call
        reads with a connection of its own; if that call writes, and it would, too, it raises NotReentrant.
        """
        if seat.interrupted:
            if seat.writes:
                raise NotReentrant
            with contextlib.closing(self.engine.producer(self.patience, create=False)) as producer:
                return work(producer)
        with _entrance:
            pass
        with seat.guard, (used := threading.Lock()):
            seat.user, seat.used = threading.get_ident(), used
            return self._carefully(seat, work)

    def _carefully(self, seat: Seat, work: Callable[[Producer], Answer]) -> Answer:
        """An exception of a signal handler may leave a transaction open: then the connection is used no more."""
        if seat.in_doubt:
            seat.clear()
        seat.in_doubt = seat.writes  # now: a second exception could keep us from noting it afterwards
        try:
            answer = self._followed(seat, work)
        except QueueError:
            seat.in_doubt = False
            raise
        except BaseException:
            if seat.in_doubt:
                seat.clear()  # at once: others may wait for the end of the transaction
            raise
        seat.in_doubt = False
        return answer

    def _followed(self, seat: Seat, work: Callable[[Producer], Answer]) -> Answer:
        """An error may say that the jobs were moved: then nothing was written, and they are where they are now."""
        try:
            return work(self.store(seat))
        except StoreMoved as error:
            self._follow(seat, error.url)
        except StoreUnavailable:
            raise
        except StoreError:
            if seat.producer is None or not (url := seat.producer.moved_to()):
                raise
            self._follow(seat, url)
        return work(self.store(seat))

    def _follow(self, seat: Seat, url: str) -> None:
        where = without_password(self.engine.url)
        for _ in range(_MOST_MOVES):
            try:
                engine = open_engine(url)
                producer = engine.producer(self.patience, create=False)
            except StoreMoved as error:
                url = error.url
                continue
            except StoreError as error:
                raise StoreError(f"{where}: the jobs were moved to {url}, which cannot be used here: {error}") from None
            if self.engine.url != url:  # other seats may follow later
                import logging  # only now: a queue loads little

                # Somebody should correct the configuration, before the old database is deleted.
                told = "%s: the jobs were moved to %s; this program should use that URL"
                logging.getLogger("supervisor").warning(told, where, url)
            seat.clear()
            self.engine, self.create, seat.producer = engine, False, producer
            return
        raise StoreError(f"{where}: the jobs were moved too often to follow them; use {url}")

    def close(self, *, used: bool = True) -> None:
        """Without `used`, nobody else can use them."""
        for seat in (self.writer, self.reader, self.lister):
            if not used:
                seat.clear()
            elif not seat.interrupted:  # otherwise whoever uses it still needs it
                with seat.guard:
                    seat.clear()


class Seat:
    """One connection, opened on first use, and the guard for the threads that use it in turn."""

    def __init__(self, *, writes: bool = False) -> None:
        self.writes = writes
        self.producer: Producer | None = None
        self.forget()
        _seats.add(self)

    def forget(self) -> None:
        """Who uses it: in the child after a fork, nobody does."""
        # Reentrant: a signal handler may fork while its thread is in the middle of a call.
        self.guard = Guard()
        # Of the last call: its thread, and a lock that is held as long as it lasts. C code releases that, whatever a
        # signal handler raises. Each call has a new one, so that none is left held by a call that was never made.
        self.user, self.used = 0, threading.Lock()
        self.in_doubt = False

    @property
    def interrupted(self) -> bool:
        """Whether this thread is in the middle of a call with it: then this is a signal handler."""
        return self.used.locked() and self.user == threading.get_ident()

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
_entrance = Guard()  # of every call: closed by a fork, which would else wait for thread after thread
_held: list[threading.RLock] = []
_LONGEST_WAIT = 2.0  # seconds that a fork waits for the present calls of other threads


def _before_fork() -> None:
    """Keep other threads out of SQLite during the fork: in the child, its locks would stay locked forever."""
    deadline = time.monotonic() + _LONGEST_WAIT
    guards = [_entrance, *(seat.guard for seat in list(_seats))]
    _held.extend(guard for guard in guards if guard.acquire(timeout=max(0.0, deadline - time.monotonic())))


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
    global _entrance
    _entrance = Guard()
    _held.clear()
    for seat in list(_seats):
        seat.forget()
        if seat.producer is not None:
            inherited.append(seat.producer)
            seat.producer = None
    for one in list(forgetful):
        one.forget()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
