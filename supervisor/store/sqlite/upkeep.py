"""What the file of a database needs now and then, apart from its rows."""

from __future__ import annotations

from supervisor.store.sqlite import repair
from supervisor.store.sqlite.connection import QUERIES, Connection
from supervisor.store.sqlite.driver_errors import BUSY_TIMEOUT
from supervisor.store.sqlite.inserting import has_run_out


class Upkeep:
    """For the maintainer, which is the only one that checkpoints while a supervisor runs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def check_file(self) -> None:
        """Raises StoreGone if the file was removed or replaced since it was opened."""
        self._connection.insist_on_file()

    def version(self) -> int:
        """Changes whenever another connection has committed. Costs microseconds."""
        return self._connection.version()

    def log_size(self) -> int:
        """Bytes of the write-ahead log."""
        return self._connection.place.log_size()

    def checkpoint(self) -> int:
        """Copy the log into the database as far as readers allow. Returns the frames still in the log."""
        with self._connection.exclusive_writers() as raw:
            _, frames, copied = raw.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return max(0, int(frames) - int(copied))

    def truncate_log(self) -> bool:
        """Truncate a log that has been copied completely; False if it is being read or written at this moment."""
        with self._connection.exclusive_writers() as raw:
            raw.execute("PRAGMA busy_timeout = 0")  # do not wait
            try:
                busy, _, _ = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                raw.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT * 1000:.0f}")
        return not busy

    def inserted(self) -> int:
        """How many jobs were ever inserted, by any program."""
        row = self._connection.row(QUERIES.inserted)
        if has_run_out(self._connection):
            with self._connection.write() as raw:
                repair.renumber(raw)
            return 0
        return int(row[0]) if row else 0

    def yield_to_others(self) -> None:
        """Programs that do not use our lock are writing: leave them a larger share of the time."""
        self._connection.yield_to_others()
