"""PostgreSQL's own duties of the maintainer."""

from __future__ import annotations

from supervisor.domain.duty import Duty, Needs, Result
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.registry import SqlRegistry


class ServerCheck(Duty):
    """Checks that the server can be reached and written: for a supervisor that has nothing to write."""

    name = "server"
    every = 1.0  # seconds
    needs = Needs.NOTHING
    quiet = True

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def run(self, now: float) -> Result:
        """Raises StoreUnavailable if it cannot."""
        self._connection.check_writable()
        return Result()


class LeaseRenewal(Duty):
    """Tells other hosts that this supervisor lives. Its lease is 15 s long."""

    name = "lease"
    every = 5.0
    needs = Needs.WRITING
    quiet = True

    def __init__(self, connection: Connection, registry: SqlRegistry) -> None:
        self._connection = connection
        self._registry = registry

    def run(self, now: float) -> Result:
        if self._registry.registered:
            self._connection.apply(QUERIES.renew_lease, {"id": self._registry.registered})
        return Result()
