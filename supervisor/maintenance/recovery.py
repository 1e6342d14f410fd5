"""Recovers what dead supervisors held: at start-up before any worker exists, later for peers."""

from __future__ import annotations

import os
import random
import signal
import stat
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from supervisor.domain.duty import Duty, Needs, Result
from supervisor.domain.job import Claim, Status
from supervisor.domain.recovery import JobPolicy, settle_interrupted, with_log
from supervisor.domain.settlement import Settlement, released
from supervisor.maintenance.deaths import DeadClaims, OutcomeCounter
from supervisor.maintenance.scheduler import ITEMS_BOUND, Items
from supervisor.store.base import ClaimLocks, Registry, SupervisorRecord, WorkerRecord
from supervisor.system import ending, kernel, run_log
from supervisor.system.channel import Message
from supervisor.system.published import read_published
from supervisor.system.scoreboard import Scoreboard, files_of, run_logs_of
from supervisor.system.slot import Snapshot
from supervisor.telemetry import events

_PASSES = 3  # in which the claims of a recovered worker are checked again
_PATIENCE = 1.0  # seconds for processes to end
_SWEEPS = 3


class StillAlive(Exception):
    """A dead supervisor's worker cannot be ended. What it runs must not be run by another yet."""


class Recovery(Duty):
    """Finds supervisors that are certainly dead; nobody else's jobs are touched.

    A supervisor on another host counts as dead when its lease has ended. It may come back at any moment; what has not
    been settled then stays its own.

    The workers of others are ended first, if this machine can tell which processes they are. If not, one may live on
    for some milliseconds and claim once more after its row is gone, so its claims are checked again for a few passes.
    """

    name = "recovery"
    every = 1.0  # seconds: a live peer recovers at once
    needs = Needs.WRITING

    def __init__(self, registry: Registry, locks: ClaimLocks, own: str, counter: OutcomeCounter | None = None) -> None:
        self._registry = registry
        self._locks = locks
        self._claims = DeadClaims(locks, counter or OutcomeCounter())
        self._own = own
        # Incarnations, their supervisors, and the number of passes left to check them.
        self._given_back: dict[str, tuple[str, int]] = {}
        self._items: Items[str] = Items("dead worker")  # and dead supervisors
        self.recovered: Counter[str] = Counter()  # supervisors, jobs, and those of them that are quarantined
        self._log = events()

    def run(self, now: float) -> Result:
        """One pass over the registry. `now` is Unix seconds."""
        until = time.monotonic() + ITEMS_BOUND
        jobs = self.recovered["jobs"]
        self._look_again(now)
        records = {record.id: record for record in self._registry.supervisors()}
        own = records.pop(self._own, None)
        result = self._items.each(records, lambda id_: self._recover(records[id_], own, now, until), until=until)
        jobs = self.recovered["jobs"] - jobs
        return Result(jobs, jobs > 0, result.problem, result.more or time.monotonic() >= until)

    def _look_again(self, now: float) -> None:
        """Release what they have claimed since, uncharged: their death has been charged already."""

        def release(incarnation: str) -> int:
            held = [released(claim) for claim in self._locks.held_by(incarnation)]
            supervisor, _ = self._given_back[incarnation]
            return self._locks.settle_dead(incarnation, held, now, supervisor=supervisor) if held else 0

        self.recovered["jobs"] += self._items.each(self._given_back, release).done
        self._given_back = {one: (whose, left - 1) for one, (whose, left) in self._given_back.items() if left > 1}

    def _recover(self, record: SupervisorRecord, own: SupervisorRecord | None, now: float, until: float) -> int:
        """If it is dead, settle its workers one by one, then remove its files and its row."""
        if self._registry.owner_lives(record) is not False:
            return 0
        self._registry.declare_dead(record)
        here = own is None or record.machine_id == own.machine_id  # otherwise its paths mean nothing
        board = Scoreboard.open(Path(record.scoreboard)) if here else None
        lease = self._registry.leases().get(record.id) if board is None else None
        published = {} if lease is None else read_published(lease.posted).workers
        workers = {
            worker.incarnation: worker
            for worker in self._registry.workers_of(record.id)
            if self._items.ready(worker.incarnation)
        }
        alive = _end_processes(record, list(workers.values()), board, own)

        def settle(incarnation: str) -> int:
            worker = workers[incarnation]
            if worker.pid in alive:
                raise StillAlive(f"process {worker.pid} of a dead supervisor does not end")
            shown = published.get(worker.slot) if board is None else board.find(incarnation, worker.slot)
            jobs = self._settle(record, worker, shown, now, current=board is not None)
            self._given_back[incarnation] = record.id, _PASSES
            return jobs

        jobs = self._items.each(workers, settle, lambda incarnation: workers[incarnation].name, until).done
        if self._registry.workers_of(record.id):
            return jobs  # to be tried again
        if here:
            _remove_files(record)
        self._registry.forget(record.id, now)
        self.recovered["supervisors"] += 1
        self._log.warning("supervisor_recovered", dead=record.id, pid=record.pid, jobs=jobs)
        return jobs

    def _settle(
        self, record: SupervisorRecord, worker: WorkerRecord, shown: Snapshot | None, now: float, *, current: bool
    ) -> int:
        def decide(held: list[Claim]) -> list[Settlement]:
            begun, batch = begun_run(shown, held, current=current)
            decided = settle_interrupted(held, begun, JobPolicy.decode(worker.policy), random.random(), batch)
            if begun is None:
                return decided
            return with_log(decided, begun, run_log.said(run_logs_of(Path(record.scoreboard)), worker.slot, *begun))

        jobs, settled = self._claims.settle(worker.incarnation, worker.name, decide, now, record.id)
        self.recovered["jobs"] += jobs
        self.recovered["quarantined"] += sum(settlement.status is Status.QUARANTINED for settlement in settled)
        return jobs


def begun_run(shown: Snapshot | None, held: Collection[Claim], *, current: bool) -> tuple[tuple[int, int] | None, int]:
    """The run that a dead worker with these claims had begun, None if that is not known, and how many ran together.

    `shown` is its slot. If that is not `current`, but was published before, it counts only where it agrees with the
    claims: the worker may have begun another run since.
    """
    if shown is None:
        return None, 1
    run = shown.job, shown.token if shown.job else 0  # (0, 0) matches no claim: nothing had begun
    if current:
        return run, shown.together if shown.job else 1
    if shown.places > 1:
        return None, len(held)
    return (run, shown.together) if run in {(claim.job_id, claim.token) for claim in held} else (None, 1)


class StartUp(Duty):
    """What cannot be recovered now, for example a row that cannot be written, does not prevent the start."""

    name = "start-up"
    every = 60.0
    needs = Needs.NOTHING  # it finds out itself whether the database is there

    def __init__(
        self,
        registry: Registry,
        record: SupervisorRecord,
        recovery: Recovery,
        send: Callable[[Message], None],
        before: Sequence[Duty] = (),
    ) -> None:
        """`before` are duties that run first; `now` may be another time after them."""
        self._registry = registry
        self._record = record
        self._recovery = recovery
        self._send = send
        self._before = list(before)
        self.done = False

    def run(self, now: float) -> Result:
        self._registry.register(self._record)
        if self._before:
            if not any(duty.run(now).more for duty in self._before):
                self._before = []
            return Result(more=True)
        result = self._recovery.run(now)
        if not result.more:
            found = self._recovery.recovered
            self._send({"recovered": {name: found[name] for name in ("supervisors", "jobs", "quarantined")}})
            self.done = True
        return Result(more=result.more)


# What a dead supervisor leaves behind on this machine: processes and files


def _end_processes(
    dead: SupervisorRecord, workers: Sequence[WorkerRecord], board: Scoreboard | None, own: SupervisorRecord | None
) -> set[int]:
    """End the workers that are still running, their templates, and processes started by jobs. Returns the pids of
    workers that do not end.

    Only if pids mean the same as they did to the dead supervisor (the same boot of the same host), and only processes
    that were started at the time in the registry, or that carry the supervisor's mark: a pid may have been reused.
    """
    if own is None or not own.boot_id or (own.boot_id, own.host) != (dead.boot_id, dead.host):
        return set()
    known = {worker.pid: worker.pid_started for worker in workers if worker.pid_started is not None}
    living = {pid: started for pid, started in known.items() if kernel.start_ticks(pid) == started}
    templates = _templates(living, board)
    # A stopped template now notices that its supervisor is gone, and ends itself and everything that it started.
    ending.signal_all(templates, signal.SIGCONT)
    left = ending.kill_all(living, _PATIENCE)
    ending.kill_all(ending.wait_for_all(templates, _PATIENCE), _PATIENCE)
    ended = {*living, *templates}
    for _ in range(_SWEEPS):  # they may start others until they are gone
        # Not the path in the database: it may name the scoreboard of a live supervisor.
        marked = ending.processes_of(f"{Path(own.scoreboard).parent}/scoreboard-{dead.id}")
        if not marked:
            break
        ended.update(marked)
        ending.kill_all(marked, _PATIENCE)
    if ended:
        events().warning("survivors_ended", dead=dead.id, pids=sorted(ended), left=sorted(left))
    return {*left}


def _templates(workers: dict[int, int], board: Scoreboard | None) -> dict[int, int]:
    """The parents of these workers that their supervisor listed as its templates, and when they were started."""
    shown = board.supervisor_status().get("templates", []) if board is not None else []
    found = {}
    for parent in {kernel.parent_of(pid) for pid in workers}:
        started = kernel.start_ticks(parent) if parent in shown else None
        if started is not None:
            found[parent] = started
    return found


def _remove_files(dead: SupervisorRecord) -> None:
    """Remove its scoreboard and the files beside it, as far as they exist and are what they should be.

    The path comes from the database, where any program may have written it: only a file of exactly this supervisor's
    name is removed, and only if it is not a link and belongs to us.
    """
    path = Path(dead.scoreboard)
    if path.name != f"scoreboard-{dead.id}" or not path.is_absolute():
        return
    for file in files_of(path):
        with suppress(OSError, ValueError):
            found = file.lstat()
            if stat.S_ISREG(found.st_mode) and os.geteuid() in (found.st_uid, 0):
                file.unlink()
