"""Settles the jobs of workers that have died, and counts them; a retry repeats the first decision."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from supervisor.domain.duty import Duty, Needs, Result
from supervisor.domain.errors import LeaseHeld
from supervisor.domain.history import finished_run
from supervisor.domain.job import Claim
from supervisor.domain.recovery import Charge, JobPolicy, settle_held, with_log
from supervisor.domain.settlement import Failure, Settlement
from supervisor.maintenance.scheduler import ITEMS_BOUND, Items
from supervisor.store.base import ClaimLocks
from supervisor.system import failpoints, run_log, settled_notice
from supervisor.system.channel import Message
from supervisor.system.counters import Row
from supervisor.telemetry import JobEvents, events


class OutcomeCounter:
    """Adds to the maintainer's `row` what was committed, so nothing counts twice, and logs it in `events`."""

    def __init__(self, row: Row | None = None) -> None:
        self.row = row or Row()
        self.events = JobEvents(events(process="maintainer"))

    def settled(self, settlements: Sequence[Settlement], count: int, now: float, *, worker: str | None = None) -> None:
        """`count` of these, of a dead `worker`, were settled. If it was not all of them, nobody knows which, and none
        is counted.
        """
        for settlement in settlements if count >= len(settlements) else ():  # before logs: those may be written slowly
            run = finished_run(settlement, now)
            if run is not None:
                self.row.ran(run.type, run.run, run.wait, failed=run.failed)
        fields = {} if worker is None else {"worker": worker}
        for settlement in settlements:
            self.events.settled(settlement, **fields)


Decide = Callable[[list[Claim]], list[Settlement]]


class DeadClaims:
    """Decisions are kept until they are written: once some of a worker's jobs have gone back to the queue, nobody can
    tell which of them had begun.
    """

    def __init__(self, locks: ClaimLocks, counter: OutcomeCounter) -> None:
        self._locks = locks
        self._counter = counter
        self._decided: dict[str, list[Settlement]] = {}

    def settle(
        self, incarnation: str, name: str, decide: Decide, now: float, supervisor: str = ""
    ) -> tuple[int, list[Settlement]]:
        """Returns how many claims were settled, and all decisions. Raises StoreError if one of them is refused, and
        LeaseHeld if `supervisor` is given and has a lease again.
        """
        settlements = self._decided.get(incarnation) or decide(self._locks.held_by(incarnation))
        self._decided[incarnation] = settlements
        try:
            count = self._locks.settle_dead(incarnation, settlements, now, worker=name, supervisor=supervisor)
        except LeaseHeld:
            del self._decided[incarnation]
            raise
        del self._decided[incarnation]
        self._counter.settled(settlements, count, now, worker=name)  # first: killed before, it would count too few
        settled_notice.notify()
        return count, settlements


@dataclass(frozen=True, slots=True)
class DeathReport:
    """What the supervisor knows of a death. `job` 0: nothing had begun. `batch`: how many jobs ran together.
    The `slot` has not been reused yet.
    """

    incarnation: str
    worker: str
    charge: Charge
    job: int = 0
    token: int = 0
    policy: str = ""
    failure: dict[str, Any] = field(default_factory=dict)
    slot: int = 0
    batch: int = 1

    def as_message(self) -> dict[str, Any]:
        return asdict(self)


class Deaths(Duty):
    """Settling a report twice is harmless: the second time nothing is held.

    `run_logs` is where workers leave the logs of their runs; `send` takes the acknowledgement of each report.
    """

    name = "deaths"
    every = 60.0  # seconds; a report makes it run at once
    needs = Needs.WRITING

    def __init__(
        self,
        locks: ClaimLocks,
        run_logs: Path | None = None,
        counter: OutcomeCounter | None = None,
        send: Callable[[Message], None] = lambda _: None,
    ) -> None:
        # By their numbers, until they are settled. Each is parsed only then: a bad one must not block the others.
        self.reports: dict[int, Mapping[str, Any]] = {}
        self._claims = DeadClaims(locks, counter or OutcomeCounter())
        self._run_logs = run_logs
        self._send = send
        self._items: Items[int] = Items("worker")

    def next_at(self, now: float) -> float | None:
        return self._items.next_try(now)

    def run(self, now: float) -> Result:
        def settle(number: int) -> int:
            failpoints.reach("death.received")
            jobs = self.settle(DeathReport(**self.reports[number]), now)
            failpoints.reach("death.settled")
            self._send({"ack": number, "jobs": jobs})
            del self.reports[number]
            return jobs

        until = time.monotonic() + ITEMS_BOUND
        return self._items.each(list(self.reports), settle, lambda number: self.reports[number].get("worker"), until)

    def settle(self, report: DeathReport, now: float) -> int:
        """Returns how many claims were released or ended. `now` is Unix seconds."""
        begun = (report.job, report.token) if report.job else None

        def decide(held: list[Claim]) -> list[Settlement]:
            failure = Failure(**report.failure) if report.failure else Failure("crash", "the worker died")
            policy = JobPolicy.decode(report.policy)
            decided = settle_held(held, begun, report.charge, failure, policy, random.random(), report.batch)
            if begun is None or self._run_logs is None:
                return decided
            return with_log(decided, begun, run_log.said(self._run_logs, report.slot, *begun))

        count, _ = self._claims.settle(report.incarnation, report.worker, decide, now)
        return count
