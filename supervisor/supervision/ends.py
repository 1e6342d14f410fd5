"""How workers and their templates end: notice it, find the cause and report it."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from functools import partial

from supervisor.maintenance.deaths import DeathReport
from supervisor.supervision import exit_reason
from supervisor.supervision.children import MaintainerClient
from supervisor.supervision.exit_reason import Circumstances, explain
from supervisor.supervision.pool import look_at
from supervisor.supervision.pools import Pools
from supervisor.supervision.template_process import TemplateProcess
from supervisor.supervision.templates import Templates
from supervisor.supervision.worker_process import WorkerProcess
from supervisor.system import child, ending, kernel
from supervisor.system.cgroup import OomCounter
from supervisor.system.reactor import Reactor
from supervisor.system.slot import State
from supervisor.telemetry import events

_ORPHANED = 5.0  # seconds after a template's death in which we inherit processes of its workers


@dataclass(eq=False)
class Ends:
    """Each end of a worker is reported to the maintainer, which settles its jobs. Times are monotonic seconds."""

    pools: Pools
    templates: Templates
    reactor: Reactor
    maintainer: MaintainerClient
    finished_jobs: int = 0  # by workers that have ended

    def __post_init__(self) -> None:
        self._log = events(process="supervisor")
        self._oom = OomCounter()
        self._look_at = self._orphans_until = 0.0
        self._inherited = frozenset(kernel.children(os.getpid()) or ())  # children of a program that became us by exec

    def watch(self, worker: WorkerProcess) -> None:
        self.reactor.watch(worker.pidfd, partial(self._notice, worker))

    def _notice(self, worker: WorkerProcess) -> None:
        worker.end(time.monotonic())
        self.reactor.unwatch(worker.pidfd)  # it stays readable forever; once is enough

    def reap(self) -> None:
        """Reap our children: maintainers, admin processes, templates, and workers whose template died before them."""
        for pid, status, peak_memory in child.reap():
            for template in self.templates:
                if template.pid == pid:
                    template.status, template.ended = status, True
            for worker in self.pools.workers():
                if worker.pid == pid:
                    worker.template.ended = True  # or it would be the parent; its own end may be seen only later
                    worker.end(time.monotonic(), status, peak_memory)

    def await_children(self, seconds: float, spare: frozenset[int]) -> frozenset[int]:
        """Wait until all children but these have ended, then kill the rest. Returns those that cannot be killed."""
        deadline = time.monotonic() + seconds
        pause = 0.002
        while time.monotonic() < deadline and set(kernel.children(os.getpid()) or ()) - spare:
            self.reap()
            time.sleep(pause)
            pause = min(pause * 1.3, 0.02)
        ending.kill_children(spare)
        return frozenset(kernel.children(os.getpid()) or ()) - spare

    def look_around(self, now: float) -> None:
        """Read the kernel's out-of-memory counter. Only once a second, so that a death that is handled a moment later
        still sees its change.
        """
        if now >= self._look_at:
            self._look_at = now + 1.0
            self._oom.look()

    # Workers

    def moments(self) -> list[float | None]:
        """When each end must be handled even if its cause is not known yet."""
        return [worker.explained_at for worker in self.pools.workers()]

    def unsettled(self) -> bool:
        """Whether some end has not been reported, or not been settled yet."""
        return bool(self.maintainer.unacknowledged) or any(not worker.living for worker in self.pools.workers())

    def report(self, now: float) -> None:
        """Find the cause of each end, report it to settle the jobs, and make room for a successor."""
        for worker in self.pools.workers():
            if worker.explained_at is not None and now >= worker.explained_at:
                self._report(worker, now)
        if now < self._orphans_until:
            self._kill_orphans()

    def _report(self, worker: WorkerProcess, now: float) -> None:
        self._last_look(worker, now)
        pool, slot, settings = self.pools[worker.pool], worker.slot.read(), worker.settings
        known = Circumstances(
            worker.status,
            kill=worker.killed,
            tail=b"" if worker.output is None else worker.output.drain(now),
            peak_memory=worker.peak_memory,
            out_of_memory=self._oom.struck,
            timeout=round(slot.deadline - slot.started, 3) if slot.deadline else settings.timeout,
            ran=now - slot.started if slot.job else None,
            cautious=worker.caution > 0,
            suspects=frozenset(pool.failures.suspects),
            unproven=worker.pool not in worker.template.proven,
        )
        ended = explain(slot, known)
        (job, token), number = ended.run, worker.number
        report = DeathReport(
            worker.incarnation,
            worker.name,
            ended.charge,
            job,
            token,
            settings.policy.encode(),
            ended.failure,
            number,
            ended.batch,
        )
        self.maintainer.report(report)
        self._forget(worker)
        self.finished_jobs += slot.done
        pool.failures.ended(ended, worker, now)
        log = self._log.debug if ended.expected else self._log.warning
        log(
            "worker_left" if ended.expected else "worker_died",
            pool=pool.name,
            worker=worker.name,
            pid=worker.pid,
            reason=ended.reason,
            detail=ended.message,
            job=None if ended.reason == exit_reason.HELD_DATABASE and ended.batch > 1 else job or None,
        )

    def _last_look(self, worker: WorkerProcess, now: float) -> None:
        """It may have been set up, and have worked, since the scoreboard was last read."""
        look_at(self.pools[worker.pool], worker, now)

    def _forget(self, worker: WorkerProcess) -> None:
        pool = self.pools[worker.pool]
        del pool.workers[worker.incarnation]
        if worker.serving and not (worker.swept or worker.template.gone):
            pool.workers.unswept[worker.incarnation] = worker.template
        self.reactor.unwatch(worker.pidfd)
        if worker.output is not None:
            self.reactor.unwatch(worker.output.descriptor)
        worker.close()

    # Templates

    def lose_template(self, template: TemplateProcess) -> None:
        """Its workers die with it. No job is charged, unless the pool is isolated because this happens repeatedly,
        and only one job was running. If none of a pool's workers had ever been ready, the cause may be their set-up.
        """
        now = time.monotonic()
        self.templates.lose(template)
        self._orphans_until = now + _ORPHANED
        for pool in self.pools.values():
            for dead in [dead for dead, its in pool.workers.unswept.items() if its is template]:
                del pool.workers.unswept[dead]
        orphaned = [worker for worker in self.pools.workers() if worker.template is template]
        for worker in orphaned:
            self._last_look(worker, now)
        if orphaned or not (template.retired or template.why_broken):
            self._log.error("template_died", pid=template.pid, workers=len(orphaned))
        accused = self._accused(template, orphaned, now)
        if template.ready and template.current and not (template.dismissed or _died_of_set_up(template, orphaned)):
            self._note_death(template, now)
        for worker in orphaned:
            if worker.status in (None, signal.SIGKILL):
                # The kernel kills them with it, and may already have done so.
                worker.kill(exit_reason.ALONE if worker is accused else exit_reason.TEMPLATE)
            if worker.pid == 0:
                worker.end(now)

    def _note_death(self, template: TemplateProcess, now: float) -> None:
        """A ready template died unexpectedly: a job of one of its pools may have killed it, or the set-up of one."""
        for release in [one for one in template.releases.values() if one.current]:
            deaths = release.template_deaths = release.template_deaths.died(now)
            if deaths.isolated(now):
                self._log.warning("pool_isolated", pool=release.pool, deaths=len(deaths.at))

    def _accused(self, template: TemplateProcess, workers: list[WorkerProcess], now: float) -> WorkerProcess | None:
        """The one worker with a job in an isolated pool, when its template dies."""
        if not (template.alone and template.ready) or template.retired or len(workers) != 1:
            return None
        [worker] = workers
        slot, release = worker.slot.read(), worker.release
        if not slot.job or not release.template_deaths.isolated(now):
            return None
        release.template_deaths = release.template_deaths.charge(slot.job, worker.settings.max_crashes)
        return worker

    def _kill_orphans(self) -> None:
        """Kill processes started by the workers of a dead template: they become our children one after another."""
        spared = self._inherited | {worker.pid for worker in self.pools.workers()}
        for pid in set(kernel.children(os.getpid()) or ()) - spared:
            if not child.is_ours(pid):
                ending.signal_child(pid, signal.SIGKILL)  # our own unreaped child


def _died_of_set_up(template: TemplateProcess, workers: list[WorkerProcess]) -> bool:
    """Whether no job can have killed it, and there is no other pool to protect from the one whose set-up did."""
    alone = len(template.releases) == 1 and not template.proven
    return alone and all(worker.slot.read().state is State.STARTING for worker in workers)
