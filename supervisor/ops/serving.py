"""Whether jobs would be run now, and what keeps one from running: for those who would wait for it in vain."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from supervisor.domain.errors import QueueError
from supervisor.domain.job import Job, Status
from supervisor.domain.text import text_of, untaken, without_password
from supervisor.ops.diagnosis import LATELY, Finding, fault, host_drained, pool_broken, type_paused, unmet, warning
from supervisor.ops.supervisors import Seen, seen
from supervisor.ops.views import SENTENCE
from supervisor.store.base import ControlState, Operations
from supervisor.system.slot import State, pool_of

# One that was cancelled may have been so because nobody waits any longer.
_NOT_STARTED = (Status.PENDING, Status.CANCELLED)


class NotServed(QueueError):
    """No pool runs jobs of the type at the moment. Nothing was enqueued. `hint` is what to do about it."""

    def __init__(self, found: Finding) -> None:
        super().__init__(found.fact)
        self.hint = found.advice


class RunningPool(NamedTuple):
    """A pool of a running supervisor. `obstacle` keeps it from running any job; None if nothing is known to."""

    host: str
    types: Sequence[str]
    capabilities: Sequence[str]
    min_priority: int | None
    obstacle: Finding | None


class Serving(NamedTuple):
    """What runs jobs at one moment. `running`: there are supervisors; `unseen`: the pools of some are not known."""

    controls: ControlState
    takers: list[RunningPool]
    running: bool
    unseen: bool

    def takes(self, type_: str) -> bool:
        """Whether a pool takes the type, or one that is not known may."""
        return self.unseen or any(type_ in taker.types for taker in self.takers)

    def obstacle(self, type_: str, takers: Sequence[RunningPool] | None = None) -> Finding | None:
        """What keeps these pools, or all that take the type, from running it; None if one may, or none is there yet."""
        if type_ in self.controls.paused:
            return type_paused(type_)
        takers = [taker for taker in self.takers if type_ in taker.types] if takers is None else takers
        found = [one.obstacle for one in takers]
        return found[0] if found and all(found) and not self.unseen else None

    def obstacle_of(self, job: Job) -> Finding | None:
        """What keeps a job that is due from running; None if it only waits for a worker, or that is not known."""
        if not self.running:
            return fault("supervisors", "no supervisor is running")
        if self.takes(job.type):
            wanted = [(job.type, job.requires, job.priority)]
            able = [one for one in self.takers if job.type in one.types and not unmet(wanted, [one])]
            if self.unseen or able:
                return self.obstacle(job.type, able)
            return warning("jobs", unmet(wanted, self.takers)[0])
        return Finding(
            "warning", "jobs", untaken(text_of(job.type), {each for one in self.takers for each in one.types})
        )


def serving(operations: Operations) -> Serving:
    """Raises StoreError."""
    found = [one for one in seen(operations) if one.alive is not False]
    controls = operations.controls.current()
    several = len({one.record.host for one in found}) > 1
    takers = [taker for one in found for taker in _takers(one, controls, several=several)]
    return Serving(controls, takers, bool(found), any(one.status is None for one in found))


def _takers(one: Seen, controls: ControlState, *, several: bool) -> Iterator[RunningPool]:
    record, host = one.record, text_of(one.record.host)
    served = {pool_of(worker.name) for worker in one.workers if worker.state is not State.STARTING}
    where = f" on {host}" if several else ""
    for name, pool in one.pools.items():
        obstacle = None
        if record.host in controls.drained:
            obstacle = host_drained(f"supervisor {record.pid}{where}", host, record.id)
        elif pool.get("problem") and pool.get("broken", True) and pool.get("target") and name not in served:
            # With the target 0, nobody tries to start a worker before a job comes.
            who = f"the pool {name} of supervisor {record.pid}{where}"
            obstacle = pool_broken(who, text_of(pool["problem"], SENTENCE))
        types = tuple(map(str, pool.get("types", ())))
        yield RunningPool(record.host, types, pool.get("capabilities", ()), pool.get("min_priority"), obstacle)


def why_untaken(operations: Operations, type_: str, configured: Collection[str]) -> str:
    """That neither the configuration nor any supervisor has a pool for the type; "" if one has, or may have.

    What a host takes that is gone is not known: it may soon be back.
    """
    now = serving(operations)
    if now.takes(type_) or type_ in configured:
        return ""
    at = operations.statistics.now()
    if any(at - one.at < LATELY for one in operations.registry.gone(at)):
        return ""
    return untaken(type_, {*configured, *(each for taker in now.takers for each in taker.types)})


def why_waiting(operations: Operations, job: Job, now: float) -> str:
    """Why a pending job does not run, and what to do about it; "" if it only waits for a worker."""
    if job.status is not Status.PENDING:
        return ""
    if job.scheduled_at > now:
        return "it is not due yet"
    found = serving(operations).obstacle_of(job)
    return "" if found is None else "; ".join(filter(None, (found.fact, found.advice)))


def why_not_started(operations: Operations, job_id: int, database: str) -> str:
    """What keeps it from starting; "" if that is not known. `database` is its URL. Raises StoreError."""
    job = operations.jobs.get(job_id)
    if job is None or job.status not in _NOT_STARTED:
        return ""
    now = serving(operations)
    found = now.obstacle_of(job)
    where = "" if now.running else f" on {without_password(database)}"
    return "" if found is None else f"{found.fact}{where}"
