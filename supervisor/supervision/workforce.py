"""All pools with their templates and workers: what happens to them in each pass of the supervisor's loop."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from supervisor.config.settings import Settings
from supervisor.store.base import Engine
from supervisor.supervision.ends import Ends
from supervisor.supervision.exit_reason import Cause
from supervisor.supervision.maintainer_client import MaintainerClient
from supervisor.supervision.memory import SharedMemory
from supervisor.supervision.plan import next_try
from supervisor.supervision.pools import Pools
from supervisor.supervision.service import Service
from supervisor.supervision.staffing import Staffing
from supervisor.supervision.templates import Templates
from supervisor.supervision.watchdog import look_at, watch
from supervisor.supervision.worker_output import Outputs
from supervisor.system.scoreboard import Scoreboard
from supervisor.telemetry import events


class Workforce:
    """The steps in their order: `hear`, once a tick `look_around`, `watch`, `rescale`."""

    def __init__(
        self, supervisor: str, engine: Engine, board: Scoreboard, client: MaintainerClient, service: Service
    ) -> None:
        reactor = service.reactor
        self.pools = Pools()
        self.templates = Templates(supervisor, engine, board, reactor)
        self.ends = Ends(self.pools, self.templates, reactor, client)
        self._outputs = Outputs(
            reactor, service.outlet, lambda: [w.process.output for w in self.pools.workers() if w.process.output]
        )
        self.staffing = Staffing(self.pools, self.templates, client.slots, self._outputs, self.ends, reactor)
        self._memory = SharedMemory(self.pools, self.templates)
        self._deadlines: list[float | None] = []  # of running jobs, and of runs that are to be stopped
        service.timers.add("ends", self.ends.moments)
        service.timers.add("floods", self._outputs.moments)
        service.timers.add("deadlines", lambda: self._deadlines)

    def configure(self, settings: Settings) -> None:
        """Begin a new release of every pool. Raises OSError, and then nothing has changed."""
        self.pools.configure(settings.pools)
        self._memory.configure(settings.machine)

    def next_tries(self) -> list[float | None]:
        """When back-offs end."""
        return [next_try(pool) for pool in self.pools.values()]

    def hear(self) -> None:
        """What the templates say, what workers print, and who has ended."""
        self.staffing.hear()
        self._outputs.read_floods()
        self.ends.report(time.monotonic())

    def look_around(self, now: float) -> None:
        """Once a tick."""
        for pool in self.pools.values():
            pool.scale.rate.measure(pool.workers.living(), now)
        self.ends.look_around(now)
        self.staffing.look_around(now)
        self._memory.look_around(now)
        self._outputs.tell_dropped()

    def watch(self, *, ticking: bool) -> None:
        self._deadlines = watch(self.pools, time.monotonic(), ticking=ticking)

    def rescale(self, settings: Settings) -> bool:
        """Bring every pool to its target size. Returns whether a target has changed."""
        now = time.monotonic()
        targets = {pool.name: pool.scale.target for pool in self.pools.values()}
        for pool in self.pools.values():
            for worker in pool.workers.living():
                if look_at(pool, worker, now):
                    self._memory.learn(worker)
            pool.decide(now)
        self._memory.divide(now)
        changed = False
        for pool in list(self.pools.values()):
            before, after, why = targets[pool.name], pool.scale.target, pool.scale.reason
            if after != before:
                changed = True
                log = events(process="supervisor")
                log.info("pool_scaled", pool=pool.name, before=before, target=after, why=why)
            self.staffing.staff(pool, settings)
            if pool.closing and not pool.workers:
                self.pools.remove(pool)
        return changed

    def heed_gate(self, *, lapsed: bool) -> bool:
        """Whether a job runs. Workers look at the gate themselves before they claim; what runs when the lease has
        `lapsed`, and must not, is killed.
        """
        running = [worker for worker in self.pools.running() if worker.slot.read().claims]
        if lapsed:
            for worker in running:
                worker.kill(Cause.PARTITION)
        return bool(running)

    def status(self, now: float) -> Mapping[str, Any]:
        """For `status`."""
        return {
            "templates": [template.child.pid for template in self.templates],
            "pools": self.pools.status(now),
            "memory": self._memory.status(),
        }
