"""The state of the database as the supervisor, which never opens it, knows it: usable or not, blocked or not."""

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
    """`trouble` says why the database cannot be used or written, for people; `gone` is "removed" or "replaced" if
    that happened to the file. `lost` is the trouble if nothing can be settled any more: the file was replaced, or
    removed, if `waits` is not set.

    Workers detect this themselves and claim nothing meanwhile, so the supervisor takes no action here. A removed
    file may come back, for example after a temporary move. After a replacement all running jobs belong to the
    old file, so the supervisor must restart.
    """

    def __init__(self, writers: Writers, owner: OwnerLock, *, waits: bool) -> None:
        self._waits = waits
        self._owner = owner
        self._writers = writers
        self._seen: Holder | None = None
        self._log = events(process="supervisor")
        self._holder = LockHolder(writers)
        self._trouble = self.gone = self.lost = self._unkept = ""

    @property
    def trouble(self) -> str:
        return "; ".join(filter(None, (self._trouble, self._holder.sentence)))

    def heed(self, message: Message) -> None:
        """Process the maintainer's report."""
        before, self.gone = self.gone, message["gone"]
        self._trouble = message["trouble"]
        if self.gone and self.gone != before:
            self._log.error("database_gone", how=self.gone, detail=self._trouble)
        if self.gone == "replaced" or (self.gone and not self._waits):
            self.lost = self.lost or self.trouble

    def _keep_ownership(self) -> None:
        """Keep the lock file that shows others that we are alive: it may have been deleted with its folder."""
        try:
            if self._owner.keep():
                self._unkept = ""
                hint = "files of a running supervisor were deleted; `status` may not show its workers until a restart"
                self._log.error("owner_lock_made_again", file=str(self._owner.path), hint=hint)
        except StoreError as error:
            if str(error) != self._unkept:
                self._unkept = str(error)
                self._log.error("owner_lock_lost", detail=self._unkept)

    def free_writers(self, workers: Iterable[WorkerProcess], attended: Iterable[SupervisedProcess], now: float) -> None:
        """Kill the holder of the writers' lock if it is our process and stopped, because it blocks every writer. Do the
        same for the database's own lock if one of our processes forgot to release it. Also keep our own lock file.

        Two checks must see the same long hold, so that a short stop has no effect. Other programs are not killed.
        `now` is monotonic seconds.
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
