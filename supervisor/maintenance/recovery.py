"""Recovers what dead supervisors held: at start-up before any worker exists, later for peers."""

from __future__ import annotations

import os
import random
import signal
import stat
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from supervisor.domain.duty import Duty, Needs, Result, moved
from supervisor.domain.job import Claim, Status
from supervisor.domain.recovery import JobPolicy, settle_interrupted, with_log
from supervisor.domain.settlement import Settlement, released
from supervisor.maintenance.deaths import Counter, DeadClaims
from supervisor.maintenance.lease import read_published
from supervisor.maintenance.scheduler import FailedItems
from supervisor.store.base import ClaimLocks, Registry, SupervisorRecord, WorkerRecord
from supervisor.system import ending, kernel, run_log
from supervisor.system.channel import Message
from supervisor.system.scoreboard import Scoreboard, files_of, run_logs_of
from supervisor.system.slot import Snapshot
from supervisor.telemetry import events

_BOUND = 2.0  # seconds per run
_PASSES = 3  # in which the claims of a recovered worker are checked again
_PATIENCE = 1.0  # seconds for processes to end
_SWEEPS = 3


class Recovered(NamedTuple):
    """What one run has recovered."""

    supervisors: int = 0
    jobs: int = 0
    quarantined: int = 0


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

    def __init__(self, registry: Registry, locks: ClaimLocks, own: str, counter: Counter | None = None) -> None:
        self._registry = registry
        self._locks = locks
        self._claims = DeadClaims(locks, counter or Counter())
        self._own = own
        # Incarnations, their supervisors, and the number of passes left to check them.
        self._given_back: dict[str, tuple[str, int]] = {}
        self._failing: FailedItems[str] = FailedItems("dead worker")
        self.recovered = Recovered()  # by the latest run
        self._log = events()

    def run(self, now: float) -> Result:
        """One pass over the registry. `now` is Unix seconds."""
        stop_by = time.monotonic() + _BOUND
        total = Recovered(jobs=self._look_again(now))
        records = self._registry.supervisors()
        own = next((record for record in records if record.id == self._own), None)
        for record in records:
            if record.id != self._own and self._failing.ready(record.id) and time.monotonic() < stop_by:
                with self._failing.attempt(record.id):
                    if self._registry.owner_lives(record) is False:
                        total = _added(total, self._recover(record, own, now, stop_by))
        self.recovered = total
        return moved(total.jobs, problem=self._failing.problem, more=time.monotonic() >= stop_by)

    def _look_again(self, now: float) -> int:
        """Release what they have claimed since, uncharged: their death has been charged already."""
        jobs = 0
        for incarnation, (supervisor, _) in self._given_back.items():
            held = [released(claim) for claim in self._locks.held_by(incarnation)]
            if held:
                with self._failing.attempt(incarnation):
                    jobs += self._locks.settle_dead(incarnation, held, now, supervisor=supervisor)
        self._given_back = {one: (whose, left - 1) for one, (whose, left) in self._given_back.items() if left > 1}
        return jobs

    def _recover(self, record: SupervisorRecord, own: SupervisorRecord | None, now: float, stop_by: float) -> Recovered:
        """Settle its workers one by one, then remove its files and its row."""
        self._registry.declare_dead(record)
        here = own is None or record.machine_id == own.machine_id  # otherwise its paths mean nothing
        board = _scoreboard(record) if here else None
        lease = self._registry.leases().get(record.id) if board is None else None
        published = {} if lease is None else read_published(lease.posted).workers
        workers = [worker for worker in self._registry.workers_of(record.id) if self._failing.ready(worker.incarnation)]
        alive = _end_processes(record, workers, board, own)
        total = Recovered()
        for worker in workers:
            if time.monotonic() >= stop_by:
                break
            with self._failing.attempt(worker.incarnation, worker.name):
                if worker.pid in alive:
                    raise StillAlive(f"process {worker.pid} of a dead supervisor does not end")
                shown = published.get(worker.slot) if board is None else board.find(worker.incarnation, worker.slot)
                total = _added(total, self._settle(record, worker, shown, now, current=board is not None))
                self._given_back[worker.incarnation] = record.id, _PASSES
        if self._registry.workers_of(record.id):
            return total  # to be tried again
        if here:
            _remove_files(record)
        self._registry.forget(record.id, now)
        self._log.warning("supervisor_recovered", dead=record.id, pid=record.pid, jobs=total.jobs)
        return total._replace(supervisors=1)

    def _settle(
        self, record: SupervisorRecord, worker: WorkerRecord, shown: Snapshot | None, now: float, *, current: bool
    ) -> Recovered:
        def decide(held: list[Claim]) -> list[Settlement]:
            begun, batch = begun_run(shown, held, current=current)
            decided = settle_interrupted(held, begun, JobPolicy.decode(worker.policy), random.random(), batch)
            if begun is None:
                return decided
            return with_log(decided, begun, run_log.said(run_logs_of(Path(record.scoreboard)), worker.slot, *begun))

        jobs, settled = self._claims.settle(worker.incarnation, worker.name, decide, now, record.id)
        return Recovered(0, jobs, sum(settlement.status is Status.QUARANTINED for settlement in settled))


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


def _added(one: Recovered, other: Recovered) -> Recovered:
    return Recovered(one.supervisors + other.supervisors, one.jobs + other.jobs, one.quarantined + other.quarantined)


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
        self._found = Recovered()
        self.done = False

    def run(self, now: float) -> Result:
        self._registry.register(self._record)
        if self._before:
            for duty in self._before:
                duty.run(now)
            self._before = []
            return Result(more=True)
        result = self._recovery.run(now)
        self._found = _added(self._found, self._recovery.recovered)
        if not result.more:
            self._send({"recovered": self._found._asdict()})
            self.done = True
        return Result(more=result.more)


# What a dead supervisor leaves behind on this machine: processes and files


def _scoreboard(dead: SupervisorRecord) -> Scoreboard | None:
    """Its scoreboard, if it still exists. The path may be anything: opening something else than a file could block."""
    path = Path(dead.scoreboard)
    try:
        is_file = stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return None
    return Scoreboard.open(path) if is_file else None


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
    # Not the path in the database: it may name the scoreboard of a live supervisor.
    marked = _end_marked(f"{Path(own.scoreboard).parent}/scoreboard-{dead.id}")
    if ended := {*living, *templates, *marked}:
        events().warning("survivors_ended", dead=dead.id, pids=sorted(ended), left=sorted(left))
    return {*left}


def _end_marked(scoreboard: str) -> set[int]:
    """They may start others until they are gone."""
    ended: set[int] = set()
    for _ in range(_SWEEPS):
        found = ending.processes_of(scoreboard)
        if not found:
            break
        ended.update(found)
        ending.kill_all(found, _PATIENCE)
    return ended


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
