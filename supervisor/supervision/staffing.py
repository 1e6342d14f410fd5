"""Starts missing workers through their templates, and lets surplus ones leave."""

from __future__ import annotations

import errno
import os
import signal
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from supervisor.config.settings import Settings
from supervisor.domain.memory import CodeTrial
from supervisor.supervision import exit_reason
from supervisor.supervision.ends import Ends
from supervisor.supervision.failures import RELOADED, plan_replacement
from supervisor.supervision.pool import Pool, is_untried, proven_by_image
from supervisor.supervision.pools import Pools
from supervisor.supervision.slots import Slots
from supervisor.supervision.template_process import TemplateProcess
from supervisor.supervision.templates import Templates
from supervisor.supervision.worker_output import Outputs
from supervisor.supervision.worker_process import WorkerProcess
from supervisor.system import ending
from supervisor.system.reactor import Reactor
from supervisor.system.scoreboard import MAX_SLOTS
from supervisor.telemetry import events

_NO_ROOM_FOR_BOTH = "there is no memory for its old model beside the new one"


@dataclass(eq=False, frozen=True)
class Staffing:
    """Listens to the templates: which workers they have forked, and which they cannot fork."""

    pools: Pools
    templates: Templates
    slots: Slots
    outputs: Outputs
    ends: Ends
    reactor: Reactor

    def staff(self, pool: Pool, settings: Settings) -> None:
        """Start missing workers of a pool and drain surplus ones."""
        now = time.monotonic()
        in_turn = pool.grant is None or not self.templates.loading  # where memory is scarce: each may load a model
        if in_turn and is_untried(pool):
            self._try_out(pool, settings, now)
        before = self.templates.before(pool.name)
        pool.old_waits = before is not None and before.spec.pools[pool.name].preloads
        missing = pool.missing(now, unproven=before is not None)
        for _ in range(missing.new):
            template = self._template(pool, settings, now)
            if template is None or not self._ask(pool, template, now):
                break
        for _ in range(missing.old if before is not None else 0):
            assert before is not None
            if not self._ask(pool, before, now):
                break
        for worker in pool.to_drain():
            worker.drain()
        while (spare := pool.workers.next_to_serve(pool.target)) is not None:
            spare.serve()

    def _try_out(self, pool: Pool, settings: Settings, now: float) -> None:
        """After a reload, load the new code of a sleeping pool, to report whether it can be loaded.

        If there is memory only for one of them, the old code goes first.
        """
        trial = CodeTrial.NOW if pool.grant is None else pool.grant.trial
        if trial is CodeTrial.INSTEAD:
            events(process="supervisor").warning("old_code_unloaded", pool=pool.name, why=_NO_ROOM_FOR_BOTH)
            self.templates.forget(pool.name)
        if trial in (CodeTrial.INSTEAD, CodeTrial.LATER):
            return  # until the memory is free
        pool.untried = False
        if trial is CodeTrial.NEVER:
            pool.passed_over = True
            return
        template = None if pool.closing else self._template(pool, settings, now)
        if template is None:
            return
        template.try_out(pool.name, now)
        if template.ready:  # that of another pool
            self._judge(pool, template)

    def _judge(self, pool: Pool, template: TemplateProcess) -> None:
        """The code of a sleeping pool has been loaded. With preload_setup that was its set-up, too."""
        if pool.name in template.lacking:
            self._back_off(pool, template.lacking[pool.name])
        elif proven_by_image(pool) and not pool.failures.restarts.failed_setups:
            self.templates.prove_image(template, pool.name)
            pool.unproven = False

    def _template(self, pool: Pool, settings: Settings, now: float) -> TemplateProcess | None:
        """The template that forks the pool's workers now; None if it cannot be started."""
        try:
            return self.templates.current(pool, settings, self.pools.sharing(pool), now)
        except OSError as error:
            self._back_off(pool, f"no template can be forked: {error.strerror}")
            return None

    def _ask(self, pool: Pool, template: TemplateProcess, now: float) -> bool:
        """Request one more worker from a template. Returns False if there is no free slot."""
        if self.slots.full:
            pool.reason = f"the scoreboard has no room for more than {MAX_SLOTS - 1} workers"
            return False
        incarnation, name = str(uuid.uuid4()), pool.workers.next_name(pool.name)
        device = pool.next_device(name)
        number, slot = self.slots.take(incarnation, name)
        settings, cautious = template.spec.pools[pool.name], pool.failures.suspicion.cautious
        worker = WorkerProcess(name, incarnation, number, slot, settings, template, now, device, cautious)
        worker.stale = RELOADED if template.superseded else ""
        pool.workers[incarnation] = worker
        template.ask(pool.name, name, incarnation, number, device, now, cautious=cautious)
        return True

    def drain_all(self) -> None:
        """Drain all workers. Workers that wait for an image that is still loading are dropped."""
        for worker in self.pools.workers():
            worker.drain()
        for incarnation in self.templates.retire_unready():
            self._drop(incarnation)

    def replace_all(self) -> None:
        """After a reload, mark every worker for replacement."""
        self.templates.supersede()
        for worker in self.pools.workers():
            plan_replacement(worker, RELOADED)

    # What the templates say

    def hear(self) -> None:
        """Process the templates' messages."""
        for template in self.templates:
            template.flush()
            if template.ended or self.reactor.is_readable(template.fileno()):
                template.hear(self)
            if template.gone:
                self._lose(template)

    def forked(self, template: TemplateProcess, incarnation: str, pid: int, pidfd: int, stderr: int) -> None:
        worker = self.pools.find(incarnation)
        if worker is None:  # dropped in the meantime
            ending.send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
            os.close(stderr)
            return
        output = self.outputs.open(stderr, worker.name, worker.slot.work)
        worker.forked(pid, pidfd, output, time.monotonic())
        self.ends.watch(worker)

    def exited(self, template: TemplateProcess, incarnation: str, status: int, peak_memory: int) -> None:
        worker = self.pools.find(incarnation)
        if worker is not None:
            worker.end(time.monotonic(), status, peak_memory)

    def swept(self, template: TemplateProcess, incarnations: Iterable[str]) -> None:
        for incarnation in incarnations:
            worker = self.pools.find(incarnation)
            if worker is not None:
                worker.swept = True
            for pool in self.pools.values():
                pool.workers.unswept.pop(incarnation, None)

    def unwatched(self, template: TemplateProcess, incarnation: str, pid: int) -> None:
        """We cannot open more descriptors, so the worker's were lost in transit; its template kills it."""
        worker = self.pools.find(incarnation)
        if worker is not None:
            worker.pid = pid
            worker.kill(exit_reason.UNWATCHED)
            self._back_off(self.pools[worker.pool], f"no worker can be watched: {os.strerror(errno.EMFILE)}", worker)

    def unforked(self, template: TemplateProcess, incarnation: str, why: str) -> None:
        self._give_up(incarnation, f"no worker can be forked: {why}")

    def broken(self, template: TemplateProcess, why: str) -> None:
        for incarnation in list(template.asked):
            worker = self.pools.find(incarnation)
            self._give_up(incarnation, why if worker is None else template.why_broken_for(worker.pool))
        for name in template.take_tried_out():
            if name in self.pools:
                self._back_off(self.pools[name], template.why_broken_for(name))

    def loaded(self, template: TemplateProcess, tried_out: Iterable[str]) -> None:
        for name in tried_out:
            if name in self.pools:
                self._judge(self.pools[name], template)

    def _lose(self, template: TemplateProcess) -> None:
        if not (template.ready or template.retired or template.why_broken):
            # The code it was loading has ended it, and may do so again.
            self.ends.reap()
            template.why_broken = f"the template ended while it was loading the handler{template.ending}"
            self.broken(template, template.why_broken)
        for name in template.take_tried_out():  # it was told to end meanwhile
            if name in self.pools:
                self.pools[name].untried = True
        self.ends.lose_template(template)

    def look_around(self, now: float) -> None:
        """End templates that are not needed or do not answer."""
        self.templates.spare_memory(self.pools.workers(), now)
        for template in self.templates.stuck(now):
            self.broken(template, template.why_broken)

    def _give_up(self, incarnation: str, why: str) -> None:
        """A requested worker could not be started."""
        worker = self._drop(incarnation)
        if worker is not None:
            self._back_off(self.pools[worker.pool], why, worker)

    def _drop(self, incarnation: str) -> WorkerProcess | None:
        """Forget a worker that has not been forked."""
        worker = self.pools.find(incarnation)
        if worker is not None:
            del self.pools[worker.pool].workers[incarnation]
            self.slots.give_back(worker.number)
        return worker

    def _back_off(self, pool: Pool, why: str, worker: WorkerProcess | None = None) -> None:
        if pool.failures.unstarted(why, time.monotonic(), worker):
            events(process="supervisor").error("pool_broken", pool=pool.name, problem=why)
