"""PostgreSQL's own duties of the maintainer."""

from __future__ import annotations

from supervisor.domain.duty import Duty, Needs, Result
from supervisor.store.postgres.connection import Connection


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
