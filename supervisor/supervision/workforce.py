"""All pools with their templates and workers: what happens to them in each pass of the supervisor's loop.

The plan of each pool is carried out here: templates are asked for workers, and workers leave.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any

from supervisor.config.settings import Settings
from supervisor.store.base import Engine
from supervisor.supervision.exit_reason import Cause
from supervisor.supervision.maintainer_client import MaintainerClient
from supervisor.supervision.memory_shares import MemoryShares
from supervisor.supervision.plan import next_to_serve, next_try, plan
from supervisor.supervision.pool import Pool
from supervisor.supervision.pools import Pools
from supervisor.supervision.release import Release
from supervisor.supervision.service import Service
from supervisor.supervision.templates import TemplateProcess, Templates
from supervisor.supervision.watchdog import look_at, watch
from supervisor.supervision.worker_ends import Ends
from supervisor.supervision.worker_output import Outputs
from supervisor.supervision.worker_process import RELOADED, Request, WorkerProcess
from supervisor.system.scoreboard import Scoreboard
from supervisor.telemetry import events


class Workforce:
    """The steps in their order: `hear`, once a tick `look_around`, `watch`, `rescale`."""

    def __init__(
        self, supervisor: str, engine: Engine, board: Scoreboard, client: MaintainerClient, service: Service
    ) -> None:
        self.pools = Pools()
        self.templates = Templates(supervisor, engine, board, service.reactor)
        self._outputs = Outputs(
            service.reactor,
            service.outlet,
            lambda: [worker.process.output for worker in self.pools.workers() if worker.process.output],
        )
        self.ends = Ends(self.pools, self.templates, service.reactor, client, self._outputs)
        self._slots = client.slots
        self._memory = MemoryShares(self.pools, self.templates)
        self._deadlines: list[float | None] = []  # of running jobs, and of runs that are to be stopped
        service.timers.add("ends", self.ends.moments)
        service.timers.add("floods", self._outputs.moments)
        service.timers.add("deadlines", lambda: self._deadlines)

    def next_tries(self) -> list[float | None]:
        """When back-offs end."""
        return [next_try(pool) for pool in self.pools.values()]

    def configure(self, settings: Settings) -> None:
        """Begin a new release of every pool, whose workers are to be replaced. Raises OSError, and then nothing has
        changed.
        """
        self.pools.configure(settings.pools)
        self._memory.configure(settings.machine)
        for worker in self.pools.workers():
            worker.replace(RELOADED)

    # The steps

    def hear(self) -> None:
        """What the templates say, what workers print, and who has ended."""
        self.ends.hear()
        self._outputs.read_floods()
        self.ends.report(time.monotonic())

    def look_around(self, now: float) -> None:
        """Once a tick. Templates that are not needed, or do not answer, end."""
        for pool in self.pools.values():
            pool.scale.rate.measure(pool.workers.living(), now)
        self.ends.look_around(now)
        self.templates.spare_memory(self.pools.templates(), now)
        for template in self.templates.kill_stuck({worker.request.template for worker in self.pools.unforked()}, now):
            self.ends.give_up_all(template)
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
            self._staff(pool, settings)
            if pool.closing and not pool.workers:
                self.pools.remove(pool)
        return changed

    def drain_all(self) -> None:
        """Drain all workers. Those that wait for an image that is still loading are given up."""
        for worker in self.pools.workers():
            worker.drain()
        for template in self.templates:
            if not template.ready:
                template.dismissed = True
                self.ends.give_up_all(template)
                template.child.kill()

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

    # One pool

    def _staff(self, pool: Pool, settings: Settings) -> None:
        """Start its missing workers and drain surplus ones."""
        now, code = time.monotonic(), pool.code
        if pool.asleep and not pool.needs_canary_worker:
            code.current.on_trial = False
        before = None if code.old is None else self.templates.forking(code.old)
        if before is None:
            code.drop_old()
        start, leave = plan(pool, now)
        template = self._template(pool, settings, now) if start.new else None
        for count, release, source in ((start.new, code.current, template), (start.old, code.old, before)):
            for _ in range(count):
                if release is None or source is None or not self._ask(pool, release, source, now):
                    break
        for worker in leave:
            worker.drain()
        while (spare := next_to_serve(pool)) is not None:
            spare.serve()

    def _template(self, pool: Pool, settings: Settings, now: float) -> TemplateProcess | None:
        """The template that forks the pool's workers now; None if it cannot be started."""
        try:
            sharing, wakes = self.pools.sharing(pool), self.pools.wakes()
            return self.templates.current(pool.code.current, settings, sharing, wakes, now)
        except OSError as error:
            pool.code.current.back_off(f"no template can be forked: {error.strerror}", now)
            return None

    def _ask(self, pool: Pool, release: Release, template: TemplateProcess, now: float) -> bool:
        """Request one more worker from a template: it is a worker of the pool from now on. Returns False if there is no
        free slot.
        """
        if self._slots.full:
            pool.scale.reason = f"the scoreboard has no room for more than {self._slots.most} workers"
            return False
        incarnation, name = str(uuid.uuid4()), pool.workers.next_name(pool.name)
        device, caution = pool.next_device(), pool.deaths.next_caution()
        number, slot = self._slots.take(incarnation, name)
        worker = WorkerProcess(Request(name, incarnation, number, slot, release, template, device, caution), now)
        worker.stale = "" if release.current else RELOADED
        pool.workers[incarnation] = worker
        template.ask(name, incarnation, pool.name, slot=number, device=device, cautious=caution > 0)
        return True
