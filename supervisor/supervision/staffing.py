"""Carries out the plan of each pool: asks templates for workers, obeys what they answer, and lets workers leave."""

from __future__ import annotations

import errno
import os
import signal
import time
import uuid
from dataclasses import dataclass

from supervisor.config.settings import Settings
from supervisor.domain.text import shortened
from supervisor.supervision.ends import Ends
from supervisor.supervision.exit_reason import Cause
from supervisor.supervision.maintainer_client import Slots
from supervisor.supervision.plan import next_to_serve, plan
from supervisor.supervision.pool import Pool
from supervisor.supervision.pools import Pools
from supervisor.supervision.release import Release
from supervisor.supervision.templates import TemplateProcess, Templates
from supervisor.supervision.worker_output import Outputs
from supervisor.supervision.worker_process import RELOADED, Process, Request, WorkerProcess
from supervisor.system import ending, signals
from supervisor.system.channel import Message
from supervisor.system.signals import Reactor
from supervisor.telemetry import events


@dataclass(eq=False, frozen=True)
class Staffing:
    """Starts workers and lets them leave. A worker that was requested is a worker of its pool from then on."""

    pools: Pools
    templates: Templates
    slots: Slots
    outputs: Outputs
    ends: Ends
    reactor: Reactor

    # What the supervisor wants

    def staff(self, pool: Pool, settings: Settings) -> None:
        """Start missing workers of a pool and drain surplus ones."""
        now = time.monotonic()
        if pool.asleep and not pool.needs_canary_worker:
            pool.code.current.on_trial = False
        before = None if pool.code.old is None else self.templates.forking(pool.code.old)
        if before is None:
            pool.code.drop_old()
        start, leave = plan(pool, now)
        for _ in range(start.new):
            template = self._template(pool, settings, now)
            if template is None or not self._ask(pool, pool.code.current, template, now):
                break
        for _ in range(start.old):
            if pool.code.old is None or before is None or not self._ask(pool, pool.code.old, before, now):
                break
        for worker in leave:
            worker.drain()
        while (spare := next_to_serve(pool)) is not None:
            spare.serve()

    def replace_all(self) -> None:
        """After a reload, mark every worker for replacement."""
        for worker in self.pools.workers():
            worker.replace(RELOADED)

    def drain_all(self) -> None:
        """Drain all workers. Workers that wait for an image that is still loading are dropped."""
        for worker in self.pools.workers():
            worker.drain()
        for incarnation in self.templates.kill_unready():
            self._drop(incarnation)

    def look_around(self, now: float) -> None:
        """Once a tick: end templates that are not needed or do not answer."""
        self.templates.spare_memory(self.pools.templates(), now)
        for template in self.templates.kill_stuck(now):
            self._break(template)

    def _template(self, pool: Pool, settings: Settings, now: float) -> TemplateProcess | None:
        """The template that forks the pool's workers now; None if it cannot be started."""
        try:
            sharing, wakes = self.pools.sharing(pool), self.pools.wakes()
            return self.templates.current(pool.code.current, settings, sharing, wakes, now)
        except OSError as error:
            _back_off(pool.code.current, f"no template can be forked: {error.strerror}")
            return None

    def _ask(self, pool: Pool, release: Release, template: TemplateProcess, now: float) -> bool:
        """Request one more worker from a template. Returns False if there is no free slot."""
        if self.slots.full:
            pool.scale.reason = f"the scoreboard has no room for more than {self.slots.most} workers"
            return False
        incarnation, name = str(uuid.uuid4()), pool.workers.next_name(pool.name)
        device, caution = pool.next_device(), pool.deaths.next_caution()
        number, slot = self.slots.take(incarnation, name)
        worker = WorkerProcess(Request(name, incarnation, number, slot, release, template, device, caution), now)
        worker.stale = "" if release.current else RELOADED
        pool.workers[incarnation] = worker
        template.ask(name, incarnation, pool.name, slot=number, device=device, cautious=caution > 0)
        return True

    # What the templates say

    def hear(self) -> None:
        """Process the templates' messages."""
        for template in self.templates:
            template.child.channel.flush()
            if template.ended or self.reactor.is_readable(template.child.descriptor):
                for message, descriptors in template.receive():
                    try:
                        self._obey(template, message, descriptors)
                    except (LookupError, TypeError, ValueError) as error:
                        # The handler's code shares the template's process, and may have written into the channel.
                        log = events(process="supervisor")
                        log.error("message_garbled", of=f"template {template.child.pid}", error=repr(error))
            if template.gone:
                self._lose(template)

    def _obey(self, template: TemplateProcess, message: Message, descriptors: list[int]) -> None:
        if "forked" in message:
            template.answered(message["forked"])
            self._forked(message["forked"], int(message["pid"]), descriptors)
        elif "exited" in message:
            if (worker := self.pools.find(message["exited"])) is not None:
                worker.ended(time.monotonic(), message["status"], message["peak_memory"])
        elif "swept" in message:
            for incarnation in message["swept"]:
                self._swept(incarnation)
        elif "unforked" in message:
            template.asked.pop(message["unforked"], None)
            self._give_up(message["unforked"], f"no worker can be forked: {message['error']}")
        elif "ready" in message:
            template.image.ready = True
            template.answered()
        elif "broken" in message:
            template.image.broken = shortened(str(message["broken"]))
            self._break(template)

    def _forked(self, incarnation: str, pid: int, descriptors: list[int]) -> None:
        worker = self.pools.find(incarnation)
        if not descriptors:  # they were lost, and the template kills it
            if worker is not None:
                worker.process.pid = pid
                worker.kill(Cause.UNWATCHED)
                _back_off(worker.release, f"no worker can be watched: {os.strerror(errno.EMFILE)}", worker)
            return
        pidfd, stderr = descriptors
        if worker is None:  # dropped in the meantime
            ending.send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
            os.close(stderr)
            return
        output = self.outputs.open(stderr, worker.request.name, worker.slot)
        worker.forked(Process(pid, pidfd, output), time.monotonic())
        self.ends.watch(worker)

    def _swept(self, incarnation: str) -> None:
        if (worker := self.pools.find(incarnation)) is not None:
            worker.end.swept = True
        for pool in self.pools.values():
            pool.workers.unswept.pop(incarnation, None)

    def _break(self, template: TemplateProcess) -> None:
        """Its code cannot be loaded: whoever waits for it is told why."""
        for incarnation in list(template.asked):
            worker = self.pools.find(incarnation)
            self._give_up(incarnation, "" if worker is None else template.why_broken(worker.release.pool))

    def _lose(self, template: TemplateProcess) -> None:
        if template.image.loading and not template.retired:
            # The code it was loading has ended it, and may do so again.
            self.ends.reap()
            status = template.child.status
            how = "" if status is None else f" ({signals.ending(os.waitstatus_to_exitcode(status))})"
            template.image.broken = f"the template ended while it was loading the handler{how}"
            self._break(template)
        self.ends.lose_template(template)

    def _give_up(self, incarnation: str, why: str) -> None:
        """A requested worker could not be started."""
        worker = self._drop(incarnation)
        if worker is not None:
            _back_off(worker.release, why, worker)

    def _drop(self, incarnation: str) -> WorkerProcess | None:
        """Forget a worker that has not been forked."""
        worker = self.pools.find(incarnation)
        if worker is not None:
            pool = self.pools[worker.release.pool]
            del pool.workers[incarnation]
            if worker.request.caution:
                pool.deaths.cautious_due.append(worker.request.caution)
            self.slots.give_back(worker.request.number)
        return worker


def _back_off(release: Release, why: str, worker: WorkerProcess | None = None) -> None:
    """Once in each back-off. A release without a template starts nobody any more."""
    now = time.monotonic()
    if now >= release.restarts.not_before and not (worker is not None and worker.request.template.retired):
        release.restarts = release.restarts.broken(now, why)
        events(process="supervisor").error("pool_broken", pool=release.pool, problem=why)
