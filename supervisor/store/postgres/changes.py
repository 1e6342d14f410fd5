"""Detects commits: a notification is the hint, the server's snapshot tells what has been committed.

A notification comes after its commit, so it opens no window of checks. It is sent only while somebody sleeps: the
sequence `job_sleepers` holds until when.
"""

from __future__ import annotations

import select
import time
import zlib
from collections.abc import Sequence

import psycopg

from supervisor.domain.errors import StoreError
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.driver_errors import is_lost, translated
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.connection import Row

# Seconds after a hint. The last ones are for what was inserted before the inserter could know that somebody sleeps.
WINDOW = (0.0, 0.01, 0.05)
SLEEP = 10  # seconds for which notifications are wanted at once
_RENEWAL = 5.0  # seconds


class PostgresChanges:
    """Implements `store.base.ChangeFeed`: with hints of what is settled if `ends`, otherwise of what is inserted."""

    window: Sequence[float] = WINDOW

    def __init__(self, connection: Connection, *, ends: bool = False) -> None:
        self._connection = connection
        self._wish = QUERIES.watch if ends else QUERIES.sleep
        self.problem = ""
        self._hinted = False
        self._wanted_until = 0.0  # monotonic
        self._listening: psycopg.Connection[Row] | None = None
        # Readable when the connection is: it stays the same descriptor, whatever becomes of that.
        self._readable = select.epoll()

    def fileno(self) -> int | None:
        return self._readable.fileno()

    def _listener(self) -> psycopg.Connection[Row]:
        raw = self._connection.raw
        if raw is not self._listening:
            try:
                raw.add_notify_handler(self._heard)
                raw.execute(QUERIES.listen)
                self._readable.register(raw.fileno(), select.EPOLLIN)
            except psycopg.Error as error:
                self._connection.drop_if_lost(error)
                raise translated(error, self._connection.address.shown) from None
            self._listening = raw
        return raw

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
        before = self._listening
        try:
            return self._look()
        except psycopg.Error as error:
            self._lost(error)
            if before is None or not is_lost(error):
                raise translated(error, self._connection.address.shown) from None
        try:  # it was lost while nobody used it
            return self._look()
        except psycopg.Error as error:
            self._lost(error)
            raise translated(error, self._connection.address.shown) from None

    def _look(self) -> int:
        raw = self._listener()
        while True:
            self._hinted = False
            row = raw.execute(QUERIES.version).fetchone()
            if not self._hinted:  # else the notice came with an answer that may be older
                return zlib.crc32(str(row).encode())

    def _lost(self, error: BaseException) -> None:
        """The next look connects again. A closed descriptor is no longer waited for."""
        self._connection.drop_if_lost(error)
        if self._listening is not None and self._listening.closed:
            self._listening = None
            self._hinted = True  # what was committed meanwhile gave no hint

    def pause(self) -> None:
        self._wanted_until = 0.0

    def resume(self) -> bool:
        at = time.monotonic()
        if at + _RENEWAL < self._wanted_until:
            return False
        paused = at >= self._wanted_until
        try:
            self._listener().execute(self._wish, {"seconds": SLEEP})
        except (psycopg.Error, StoreError) as error:
            self._lost(error)
            return False  # tried again at the next check; until then polling finds everything
        self._wanted_until = at + SLEEP
        return paused

    def close(self) -> None:
        self._readable.close()
        self._connection.close()
