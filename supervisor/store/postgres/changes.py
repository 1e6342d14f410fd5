"""Detects commits: a notification is the hint, the server's snapshot tells what has been committed. One statement a
second looks at that, keeps the notifications coming, and finds out whether the server can be written.

A notification comes after its commit, so one check sees it. It is sent only while somebody sleeps: the
sequence `job_sleepers` holds until when. A pooler does not pass notifications on: behind one, they are heard on a
connection of their own, if the configuration names one that leads to the server; otherwise there are none.
"""

from __future__ import annotations

import select
import time
from itertools import chain

import psycopg

from supervisor.domain.errors import StoreError
from supervisor.store.base import ChangeFeed
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.connection import Row

LATE = (0.04, 0.01)  # seconds between checks, from the last: for those who could not know that somebody sleeps
SLEEP = 10  # seconds for which notifications are wanted at once
RENEWAL = 5.0  # seconds before its end
_RETRY = 30.0  # seconds until a connection for notifications that could not be made is tried again


class PostgresChanges(ChangeFeed):
    """With hints of what is settled if `ends`, otherwise of what is inserted.

    They are heard on the connection `listening`, if there is one.
    """

    unhinted = 1.0

    def __init__(self, connection: Connection, listening: Connection | None = None, *, ends: bool = False) -> None:
        self._connection = connection
        self._ears = listening or connection
        self._ends = ends
        self._snapshot, self._version = "0:0:", 0
        self._own: int | None = None  # the last transaction of this feed that has written, modulo 2**32
        self._hinted = False
        self._late: list[float] = []
        self._wanted_until = 0.0  # monotonic
        self._deaf_until = 0.0  # monotonic
        self._listening: psycopg.Connection[Row] | None = None
        # Readable when the connection is: it stays the same descriptor, whatever becomes of that.
        self._readable = select.epoll()

    def fileno(self) -> int | None:
        return self._readable.fileno()

    def _listen(self) -> None:
        """On a connection that notifications reach. Where it cannot be made, everything goes on without them."""
        if time.monotonic() < self._deaf_until:
            return
        try:
            raw = self._ears.raw
            if raw is self._listening:
                return
            if self._ears.pooled:
                self.problem = f"{self._ears.address.shown}: a pooler passes no notifications on"
                self._deaf_until = float("inf")
                return
            raw.add_notify_handler(self._heard)
            raw.execute(QUERIES.listen)
            self._readable.register(raw.fileno(), select.EPOLLIN)
            self._listening, self.problem = raw, ""
        except (psycopg.Error, StoreError) as error:
            self._lost(error)
            if self._ears is not self._connection:
                self.problem = str(error)
                self._deaf_until = time.monotonic() + _RETRY
        self._wanted_until = 0.0  # what was committed meanwhile gave no hint

    def _heard(self, notification: psycopg.Notify) -> None:
        self._hinted = True

    def drain(self, pause: float = 0.0) -> bool:
        raw = self._listening
        if raw is not None:
            try:
                raw.pgconn.consume_input()  # not the driver's `notifies`: it does not go with a handler
                while raw.pgconn.notifies() is not None:
                    self._hinted = True
            except psycopg.Error as error:
                self._lost(error)
        hinted, self._hinted = self._hinted, False
        return hinted

    def version(self) -> int:
        self._listen()
        before = self._version
        while True:
            self._hinted = False
            self._look(0.0 < self._wanted_until - time.monotonic() <= RENEWAL)
            if not self._hinted:  # else the notice came with an answer that may be older
                break
        if self._version != before:
            self._late = []
        self.unhinted = self._late.pop() if self._late else 1.0
        return self._version

    def _look(self, renew: bool) -> None:
        """It is another version if anything has been committed, unless supervisors have only renewed their leases, and
        this feed its wish for notifications. A snapshot is the oldest transaction, the next, and those that run.
        """
        before, ours, at, left = self._snapshot, {self._own}, time.monotonic(), SLEEP
        if self._ends:
            if renew:
                self._connection.rows(QUERIES.watch, {"seconds": SLEEP})
            [(after,)] = self._connection.rows(QUERIES.version)
        else:
            wish = {"seconds": SLEEP if renew else 0, "least": RENEWAL + 1}
            [(after, read_only, leases, left, own)] = self._connection.rows(QUERIES.look, wish)
            if read_only:
                self._connection.check_writable()
            ours.update(leases)
            self._own = own or self._own
        self._wanted_until = at + min(left, SLEEP) if renew else self._wanted_until
        (_, first, others), (_, end, running) = before.split(":"), after.split(":")
        known, still = chain(others.split(","), map(str, range(int(first), int(end)))), {"", *running.split(",")}
        news = any(one not in still and int(one) % 2**32 not in ours for one in known)
        self._snapshot, self._version = after, self._version + (news or int(end) < int(first))  # lower: a failover

    def _lost(self, error: BaseException) -> None:
        """The next look connects again. A closed descriptor is no longer waited for."""
        self._ears.drop_if_lost(error)
        if self._listening is not None and self._listening.closed:
            self._listening = None
            self._hinted = True  # what was committed meanwhile gave no hint

    def pause(self) -> None:
        self._wanted_until = 0.0

    def resume(self) -> bool:
        at = time.monotonic()
        if at + RENEWAL < self._wanted_until:
            return False
        paused = at >= self._wanted_until
        self._listen()
        if self._listening is None and not self._ends:
            return False  # nobody hears them
        try:
            self._look(True)
        except StoreError:
            return False  # tried again at the next check; until then polling finds everything
        if paused:
            self._late = [*LATE]
        return paused

    def close(self) -> None:
        self._readable.close()
        self._ears.close()
        self._connection.close()
