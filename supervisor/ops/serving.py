"""Whether jobs of a type would be run now: for those who would wait for one in vain."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from supervisor.domain.errors import QueueError
from supervisor.domain.text import text_of, untaken
from supervisor.maintenance.waking import pool_of
from supervisor.ops.diagnosis import LATELY, Finding, host_drained, pool_broken, type_paused
from supervisor.ops.posted import Seen, seen
from supervisor.ops.views import SENTENCE
from supervisor.store.base import ControlState, Operations
from supervisor.system.slot import State


class NotServed(QueueError):
    """No pool runs jobs of the type at the moment. Nothing was enqueued. `hint` is what to do about it."""

    def __init__(self, found: Finding) -> None:
        super().__init__(found.fact)
        self.hint = found.advice


class Taker(NamedTuple):
    """A pool of a running supervisor. `obstacle` keeps it from running any job; None if nothing is known to."""

    host: str
    types: Collection[str]
    obstacle: Finding | None


class Serving(NamedTuple):
    """What runs jobs at one moment. `unseen`: there are supervisors whose pools are not known."""

    controls: ControlState
    takers: list[Taker]
    unseen: bool

    def takes(self, type_: str) -> bool:
        """Whether a pool takes the type, or one that is not known may."""
        return self.unseen or any(type_ in taker.types for taker in self.takers)

    def obstacle(self, type_: str) -> Finding | None:
        """What keeps every pool that takes the type from running it; None if one may run it, or none is there yet."""
        if type_ in self.controls.paused:
            return type_paused(type_)
        if self.unseen:
            return None
        found = [self._obstacle(taker, type_) for taker in self.takers if type_ in taker.types]
        return found[0] if found and all(found) else None

    def _obstacle(self, taker: Taker, type_: str) -> Finding | None:
        if type_ in self.controls.paused_on(taker.host):
            return type_paused(type_, self.controls.hosts_of("paused", type_))
        return taker.obstacle


def serving(operations: Operations) -> Serving:
    """Raises StoreError."""
    found = [one for one in seen(operations) if one.alive is not False]
    controls = operations.controls.current()
    several = len({one.record.host for one in found}) > 1
    takers = [taker for one in found for taker in _takers(one, controls, several=several)]
    return Serving(controls, takers, any(one.status is None for one in found))


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


def _takers(one: Seen, controls: ControlState, *, several: bool) -> Iterator[Taker]:
    record, host = one.record, text_of(one.record.host)
    served = {pool_of(worker.name) for worker in one.workers if worker.state is not State.STARTING}
    where = f" on {host}" if several else ""
    for name, pool in (one.status or {}).get("pools", {}).items():
        obstacle = None
        if record.host in controls.drained:
            obstacle = host_drained(f"supervisor {record.pid}{where}", host, record.id)
        elif pool.get("problem") and pool.get("broken", True) and pool.get("target") and name not in served:
            # With the target 0, nobody tries to start a worker before a job comes.
            who = f"the pool {name} of supervisor {record.pid}{where}"
            obstacle = pool_broken(who, text_of(pool["problem"], SENTENCE))
        yield Taker(record.host, frozenset(map(str, pool.get("types", ()))), obstacle)
