"""Detects commits: a notification is the hint, the server's snapshot tells what has been committed.

A notification comes after its commit, so it opens no window of checks. It is sent only while somebody sleeps: the
sequence `job_sleepers` holds until when. A pooler does not pass notifications on: behind one, they are heard on a
connection of their own, if the configuration names one that leads to the server; otherwise there are none.
"""

from __future__ import annotations

import select
import time
import zlib

import psycopg

from supervisor.domain.errors import StoreError
from supervisor.store.base import ChangeFeed
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.connection import Row

# Seconds after a hint. The last ones are for what was inserted before the inserter could know that somebody sleeps.
WINDOW = (0.0, 0.01, 0.05)
SLEEP = 10  # seconds for which notifications are wanted at once
RENEWAL = 5.0  # seconds before its end
_RETRY = 30.0  # seconds until a connection for notifications that could not be made is tried again


class PostgresChanges(ChangeFeed):
    """With hints of what is settled if `ends`, otherwise of what is inserted.

    They are heard on the connection `listening`, if there is one.
    """

    window = WINDOW
    unhinted = 1.0

    def __init__(self, connection: Connection, listening: Connection | None = None, *, ends: bool = False) -> None:
        self._connection = connection
        self._ears = listening or connection
        self._wish = QUERIES.watch if ends else QUERIES.sleep
        self._hinted = False
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

    def drain(self) -> bool:
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
        while True:
            self._hinted = False
            [row] = self._connection.rows(QUERIES.version)
            if not self._hinted:  # else the notice came with an answer that may be older
                return zlib.crc32(str(row).encode())

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
        if self._listening is None and self._wish == QUERIES.sleep:
            return False  # nobody hears them
        try:
            self._connection.rows(self._wish, {"seconds": SLEEP})
        except StoreError:
            return False  # tried again at the next check; until then polling finds everything
        self._wanted_until = at + SLEEP
        return paused

    def close(self) -> None:
        self._readable.close()
        self._ears.close()
        self._connection.close()
