"""Copy the write-ahead log back into the database, so that it stays short."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.maintenance.duty import Duty, Needs, Result
from supervisor.store.base import Chores
from supervisor.telemetry import events

ALARM = 256 << 20  # bytes of log at which a reader must be holding a snapshot for minutes
_WORTHWHILE = 4 << 20  # bytes
_LARGE = 64 << 20  # bytes: the file of a log that has grown beyond is not kept for the next time


@dataclass(frozen=True, slots=True)
class Checkpointed(Result):
    ran: bool = False


class Checkpointer(Duty):
    """The only one that checkpoints while a supervisor lives: under the writers' lock, never blocking readers.

    SQLite before 3.51.3 has a rare corruption bug when connections write and checkpoint at once; with our
    writers kept out meanwhile the risk is smaller.
    """

    name = "checkpoints"
    every = 1.0
    needs = Needs.WRITING
    quiet = True

    def __init__(self, chores: Chores) -> None:
        self._chores = chores
        self._version = -1
        self._size = 0
        self._alarmed = False

    def run(self, now: float) -> Checkpointed:
        """Checkpoint what has been committed since the last time, if it is worth it or nobody is writing."""
        version, size = self._chores.version(), self._chores.log_size()
        if version == self._version and self._size == 0:
            return Checkpointed()
        quiet = version == self._version
        worth_it = quiet or size >= _WORTHWHILE
        if worth_it:
            left = self._chores.checkpoint()
            self._warn(size, left)
            if left == 0 and (size <= _LARGE or self._truncate(size)) and quiet:
                size = 0
        self._version, self._size = version, size
        return Checkpointed(worth_it)

    def _truncate(self, size: int) -> bool:
        done = self._chores.truncate_log()
        if done:
            events().info("log_truncated", bytes=size)
        return done

    def _warn(self, size: int, left: int) -> None:
        if size > ALARM and left and not self._alarmed:
            events().warning("log_grows", bytes=size, hint="a program keeps a read transaction open for long")
        self._alarmed = size > ALARM and left > 0
