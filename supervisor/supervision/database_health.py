"""What the supervisor, which opens no database, knows of it: whether it can be used, and who holds up its writers."""

from __future__ import annotations

from collections.abc import Iterable

from supervisor.domain.errors import StoreError
from supervisor.store.base import Holder, OwnerLock, Writers
from supervisor.supervision import exit_reason
from supervisor.supervision.lock_holder import LockHolder
from supervisor.supervision.supervised_process import SupervisedProcess
from supervisor.supervision.worker_process import WorkerProcess
from supervisor.system import kernel
from supervisor.system.channel import Message
from supervisor.telemetry import events

LONG_HOLD = 1.0  # seconds; a transaction of ours takes milliseconds


class DatabaseHealth:
    """`trouble` is why the database cannot be used or written, for people; `gone` is "removed" or "replaced" if the
    file is.

    Workers find out for themselves and claim nothing meanwhile, so nothing is done about trouble here. A file
    that is gone may come back, as one does that is moved away for a moment. One that was replaced does not:
    all that runs belongs to the old file.
    """

    def __init__(self, writers: Writers, owner: OwnerLock) -> None:
        self._owner = owner
        self._writers = writers
        self._seen: Holder | None = None
        self._log = events(process="supervisor")
        self._holder = LockHolder(writers)
        self._trouble = self.gone = self._unkept = ""

    @property
    def trouble(self) -> str:
        return "; ".join(filter(None, (self._trouble, self._holder.sentence)))

    def heed(self, message: Message) -> None:
        """Take in the maintainer's word."""
        before, self.gone = self.gone, message["gone"]
        self._trouble = message["trouble"]
        if self.gone and self.gone != before:
            self._log.error("database_gone", how=self.gone, detail=self._trouble)

    def _keep_ownership(self) -> None:
        """See that others can still tell that we live: our lock file may have been deleted with its folder."""
        try:
            if self._owner.keep():
                self._unkept = ""
                hint = "files of a running supervisor were deleted; `status` may not see its workers until a restart"
                self._log.error("owner_lock_made_again", file=str(self._owner.path), hint=hint)
        except StoreError as error:
            if str(error) != self._unkept:
                self._unkept = str(error)
                self._log.error("owner_lock_lost", detail=self._unkept)

    def free_writers(self, workers: Iterable[WorkerProcess], attended: Iterable[SupervisedProcess], now: float) -> None:
        """Kill the holder of the writers' lock if it is ours and stopped: with it, every writer waits in vain. The
        same for the database's own lock, where it is ours and was forgotten. And see to our own lock file.

        Two looks must see the same long hold, so that a stop of an instant harms nobody. A stranger is passed
        by. `now` is monotonic seconds.
        """
        self._keep_ownership()
        workers, attended = list(workers), list(attended)
        self._holder.look(workers, attended, now)
        seen, self._seen = self._seen, self._writers.holder()
        if self._seen is None or self._seen != seen or now - self._seen.since < LONG_HOLD:
            return
        if not kernel.is_stopped(self._seen.pid):
            return
        for process in attended:
            if process.pid == self._seen.pid:
                self._log.error(f"{process.role}_stopped", pid=process.pid, holding="the writers' lock")
                process.kill()
        for worker in workers:
            if worker.pid == self._seen.pid:
                worker.kill(exit_reason.STOPPED)
