"""Give back what dead supervisors held: at start-up before any worker exists, and for peers ever after."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass
from pathlib import Path

from supervisor.domain.job import Status
from supervisor.domain.policy import JobPolicy, settle_interrupted, with_log
from supervisor.domain.settlement import released
from supervisor.maintenance.counting import Counter
from supervisor.store.base import Chores, SupervisorRecord, WorkerRecord
from supervisor.system import tape
from supervisor.system.scoreboard import Scoreboard, tallies_of, tapes_of
from supervisor.telemetry import events

_PASSES = 3  # in which a buried worker is looked for again: nothing outlives its supervisor by a second


@dataclass(frozen=True, slots=True)
class Recovered:
    supervisors: int = 0
    jobs: int = 0
    quarantined: int = 0


class Recovery:
    """Finds supervisors that are certainly dead; nobody else's jobs are touched.

    A worker may outlive its supervisor for some milliseconds, and claim once more after it has been buried.
    It stands in no registry then, so whoever buried it remembers it for a few passes.
    """

    every = 1.0  # seconds: a living peer recovers at once

    def __init__(self, chores: Chores, own: str, counter: Counter | None = None) -> None:
        self._chores = chores
        self._counter = counter or Counter()
        self._own = own
        self._buried: dict[str, int] = {}  # incarnations, and how many passes they are still remembered
        self._log = events()

    def run_once(self, now: float) -> Recovered:
        """One pass over the registry. `now` is Unix seconds."""
        total = Recovered(jobs=self._look_again(now))
        for record in self._chores.supervisors():
            if record.id != self._own and self._chores.owner_lives(record) is False:
                jobs, quarantined = self._bury(record, now)
                total = Recovered(total.supervisors + 1, total.jobs + jobs, total.quarantined + quarantined)
                self._log.warning("supervisor_recovered", dead=record.id, pid=record.pid, jobs=jobs)
        return total

    def _look_again(self, now: float) -> int:
        """Give back what the buried have claimed since, uncharged: their death has been charged already."""
        jobs = 0
        for incarnation in self._buried:
            held = [released(claim) for claim in self._chores.held_by(incarnation)]
            if held:
                jobs += self._chores.settle_dead(incarnation, held, now)
        self._buried = {incarnation: passes - 1 for incarnation, passes in self._buried.items() if passes > 1}
        return jobs

    def _bury(self, record: SupervisorRecord, now: float) -> tuple[int, int]:
        board = Scoreboard.open(Path(record.scoreboard))
        tapes, tallies = tapes_of(Path(record.scoreboard)), tallies_of(Path(record.scoreboard))
        jobs = quarantined = 0
        for worker in self._chores.workers_of(record.id):
            held = self._chores.held_by(worker.incarnation)
            begun, batch = self._begun(board, worker)
            policy = JobPolicy.decode(worker.policy)
            settlements = settle_interrupted(held, begun, policy, random.random(), batch)
            if begun is not None:
                settlements = with_log(settlements, begun, tape.said(tapes, worker.slot, *begun))
            settled = self._chores.settle_dead(worker.incarnation, settlements, now, worker=worker.name)
            self._counter.settled(settlements, settled, now)
            jobs += settled
            quarantined += sum(s.status is Status.QUARANTINED for s in settlements)
            self._buried[worker.incarnation] = _PASSES
        self._chores.forget_supervisor(record.id)
        with contextlib.suppress(OSError):
            tapes.unlink(missing_ok=True)
            tallies.unlink(missing_ok=True)
        return jobs, quarantined

    def _begun(self, board: Scoreboard | None, worker: WorkerRecord) -> tuple[tuple[int, int] | None, int]:
        """The run that had begun, and of how many jobs; None if the scoreboard does not tell."""
        slot = board.find(worker.incarnation, worker.slot) if board is not None else None
        if slot is None:
            return None, 1
        # Without a run this is (0, 0), which no claim matches: nothing had begun.
        return (slot.job, slot.token if slot.job else 0), slot.batch if slot.job else 1
