"""The state of the database as the supervisor, which never opens it, knows it: usable or not, blocked or not.

SQLite has one writer at a time. A handler that forgets its commit locks out every other writer, its own worker
included, for as long as its process lives. The process whose open transaction blocks all writers is reported, and ended
if it is a worker.

In a worker that runs several jobs at the same time it is not known which of them holds it. While it is held, no outcome
can be committed. So if none is uncommitted, a run that continues must hold it; otherwise it may be one that has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log2

from supervisor.domain.errors import StoreError
from supervisor.domain.text import human
from supervisor.store.base import DatabaseHolder, Holder, OwnerLock, Writers
from supervisor.supervision.exit_reason import NO_RUN, Cause
from supervisor.supervision.supervised_process import SupervisedProcess
from supervisor.supervision.worker_process import WorkerProcess
from supervisor.system import kernel
from supervisor.system.channel import Message
from supervisor.system.slot import Snapshot
from supervisor.telemetry import events

AFTER_ITS_END = 1.5  # seconds that a worker may hold the lock after the run that took it has ended
BESIDE_OTHERS = 2.0  # the same if it is not sure that the run has ended, because other runs continue
LATE_BEAT = 1.0  # seconds without a beat while jobs run: what the worker itself writes is held up, too
STOPPED_FOR = 1.0  # seconds that a stopped process of ours may hold it
NAMED_AFTER = 5.0  # seconds after which the holder is reported; the busy timeout of most programs
LONG_HOLD = 1.0  # seconds; a transaction of ours takes milliseconds
_MORE = 1.0  # seconds over the time limit and kill_grace: by then a run that was not extended has been killed

Ours = WorkerProcess | SupervisedProcess


@dataclass(slots=True)
class Hold:
    """One transaction as far as checks can tell: the same holder without a commit. Times are monotonic seconds.

    It began after `free`, when the last check found the lock free or with another holder.
    """

    holder: DatabaseHolder
    since: float
    free: float
    over_since: float | None = None  # when the run that began it was first seen to have ended
    named: bool = False


class DatabaseHealth:
    """`trouble` says why the database cannot be used or written, for people; `gone` is "removed" or "replaced" if
    that happened to the file. `lost` is the trouble if nothing can be settled any more: the file was replaced, or
    removed, and nobody waits for it.

    Workers detect this themselves and claim nothing meanwhile, so the supervisor takes no action here. A removed
    file may come back, for example after a temporary move. After a replacement all running jobs belong to the
    old file, so the supervisor must restart.
    """

    def __init__(self, writers: Writers, owner: OwnerLock) -> None:
        self._owner = owner
        self._writers = writers
        self._seen: Holder | None = None  # of the writers' lock
        self._hold: Hold | None = None  # of the database's own lock
        self._looked = 0.0  # when that was looked at last
        self._trouble = self._held = self._unkept = ""
        self.gone = self.lost = ""

    @property
    def trouble(self) -> str:
        return "; ".join(filter(None, (self._trouble, self._held)))

    def release(self, *, registered: bool) -> None:
        """Give up our own lock file."""
        self._owner.release(registered=registered and not self.lost)

    def heed(self, message: Message, *, waits: bool) -> None:
        """Process the maintainer's report. `waits`: a file that was removed may come back."""
        before, self.gone = self.gone, message["gone"]
        self._trouble = message["trouble"]
        if self.gone and self.gone != before:
            events(process="supervisor").error("database_gone", how=self.gone, detail=self._trouble)
        if self.gone == "replaced" or (self.gone and not waits):
            self.lost = self.lost or self.trouble

    def free_writers(self, workers: Iterable[WorkerProcess], attended: Iterable[SupervisedProcess], now: float) -> None:
        """Kill the holder of the writers' lock if it is our process and stopped, because it blocks every writer. Do the
        same for the database's own lock if one of our processes forgot to release it. Also keep our own lock file.

        Two checks must see the same long hold, so that a short stop has no effect. Other programs are not killed.
        `now` is monotonic seconds.
        """
        self._keep_ownership()
        ours: dict[int, Ours] = {one.pid: one for one in attended if one.pid}
        ours |= {worker.process.pid: worker for worker in workers}
        self._look_at_database(ours, now)
        before, seen = self._seen, self._writers.holder()
        self._seen = seen
        if seen is not None and seen == before and now - seen.since >= LONG_HOLD and seen.pid in ours:
            _end_if_stopped(ours[seen.pid], seen.pid, "the writers' lock")

    def _keep_ownership(self) -> None:
        """Keep the lock file that shows others that we are alive: it may have been deleted with its folder."""
        try:
            if self._owner.keep():
                self._unkept = ""
                hint = "files of a running supervisor were deleted; `status` may not show its workers until a restart"
                events(process="supervisor").error("owner_lock_made_again", file=str(self._owner.path), hint=hint)
        except StoreError as error:
            if str(error) != self._unkept:
                self._unkept = str(error)
                events(process="supervisor").error("owner_lock_lost", detail=self._unkept)

    def _look_at_database(self, ours: Mapping[int, Ours], now: float) -> None:
        """End a worker whose run has left a transaction open; report any other process that holds the lock for long, in
        `status` and once in the log.
        """
        holder, hold, free = self._writers.database_holder(), self._hold, self._looked
        self._looked = now
        if hold is None or hold.holder != holder:
            self._hold, self._held = None if holder is None else Hold(holder, now, free), ""
            return
        pid, held = hold.holder.pid, now - hold.since
        one = next((ours[member] for member in kernel.ancestry(pid) if member in ours), None)
        if one is not None and ours.get(pid) is one and kernel.is_stopped(pid):
            if held >= STOPPED_FOR:
                _end_if_stopped(one, pid, "the database's write lock")
            return
        if isinstance(one, WorkerProcess):
            _judge(one, one.slot.read(), hold, now)
        if held >= NAMED_AFTER:
            # Doubled durations, so that the message does not change every second.
            over = human(NAMED_AFTER * 2 ** int(log2(held / NAMED_AFTER)))
            who = _name_of(one, pid)
            self._held = f"{who} has held the database's write lock for over {over}; no other process can write"
            if not hold.named:
                hold.named = True
                events(process="supervisor").warning("database_held", pid=pid, detail=self._held)


def _judge(worker: WorkerProcess, slot: Snapshot, hold: Hold, now: float) -> None:
    """Kill a worker that holds the lock although the run that took it has ended, or is over its time limit. With
    concurrency, all its runs, and those that are not committed, are suspects.
    """
    shared = slot.places > 1
    late = shared and slot.running > 0 and now - slot.beat > LATE_BEAT
    ended = (slot.unsettled > 0 or not slot.running) and not late if shared else not slot.job
    over = (ended or (not shared and slot.started > hold.since)) and not kernel.waits_for_disk(hold.holder.pid)
    hold.over_since = (hold.over_since or now) if over else None
    settings = worker.release.settings
    if hold.over_since is not None:
        if now - hold.over_since >= (BESIDE_OTHERS if shared and slot.running else AFTER_ITS_END):
            # One job or batch at a time: the current run is not the cause. With several ended ones it is unknown which.
            current = (slot.job, slot.token) if shared else NO_RUN
            worker.kill(Cause.HELD_DATABASE, current if slot.job else (slot.last_job, slot.last_token))
    elif slot.job and not late and now - hold.since > max(settings.timeouts) + settings.kill_grace + _MORE:
        # A run before it whose outcome is not committed may have begun it, too.
        unsure = not shared and slot.unsettled and slot.started > hold.free
        worker.kill(Cause.HELD_DATABASE, NO_RUN if unsure else None)


def _end_if_stopped(one: Ours, pid: int, holding: str) -> None:
    if not kernel.is_stopped(pid):
        return
    if isinstance(one, WorkerProcess):
        one.kill(Cause.STOPPED)
    else:
        events(process="supervisor").error(f"{one.role}_stopped", pid=one.pid, holding=holding)
        one.kill()


def _name_of(one: Ours | None, pid: int) -> str:
    """The holder, for people."""
    if isinstance(one, WorkerProcess):
        slot = one.slot.read()
        of = f"job {slot.job}" if slot.job else "a run that has ended"
        if slot.together > 1:
            of = f"one of {slot.together} jobs that run together, or have just ended,"
        return f"{of} in worker {one.request.name} (pid {one.process.pid})"
    if one is not None:
        return f"our own {one.role} (pid {one.pid})"
    command = kernel.command_of(pid) if pid else ""
    return f"another program (pid {pid}{command and f': {command}'})" if pid else "a process of another container"
