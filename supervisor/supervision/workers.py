"""All workers of this supervisor: requests them, receives their messages, and handles their ends."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from supervisor.config.settings import Settings
from supervisor.store.base import Engine
from supervisor.supervision import exit_reason
from supervisor.supervision.exit_reason import Circumstances
from supervisor.supervision.maintainer_client import MaintainerClient
from supervisor.supervision.pool import Pool
from supervisor.supervision.slots import Slots
from supervisor.supervision.supervised_process import SupervisedProcess
from supervisor.supervision.template_process import TemplateProcess
from supervisor.supervision.templates import Templates
from supervisor.supervision.worker_output import Outputs, WorkerOutput
from supervisor.supervision.worker_process import WorkerProcess
from supervisor.system import ending, kernel
from supervisor.system.oom import OomCounter
from supervisor.system.outlet import Outlet
from supervisor.system.reactor import Reactor
from supervisor.system.scoreboard import MAX_SLOTS, Scoreboard
from supervisor.system.slot import Cancel
from supervisor.telemetry import events

_UNFORKED = "no {what} can be forked: {why}"
_ORPHANED = 5.0  # seconds after a template's death in which we inherit processes of its workers


class Workers:
    """Connects templates, slots and workers. Times are monotonic seconds.

    Each end is reported to the maintainer; a slot is reused only after the acknowledgement. `pools` are the
    supervisor's; a pool stays in it as long as it has a worker.
    """

    def __init__(
        self,
        supervisor: str,
        engine: Engine,
        board: Scoreboard,
        reactor: Reactor,
        maintainer: MaintainerClient,
        supervised: Iterable[SupervisedProcess],
        pools: Mapping[str, Pool],
        outlet: Outlet,
    ) -> None:
        self._reactor = reactor
        self._maintainer = maintainer
        self._supervised = tuple(supervised)
        self._pools = pools
        self._outlet = outlet
        self._log = events(process="supervisor")
        self._slots = Slots(board)
        self._workers: dict[str, WorkerProcess] = {}
        self._reported: dict[int, WorkerProcess] = {}
        self._oom = OomCounter()
        self._look_at = 0.0
        self._news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._inherited = frozenset(kernel.children(os.getpid()) or ())  # children of a program that became us by exec
        self._orphans_until = 0.0
        self.templates = Templates(supervisor, engine, board, reactor, self._news)
        self.outputs = Outputs(reactor, lambda: [w.output for w in self._workers.values() if w.output is not None])
        self.finished_jobs = 0  # by workers that have ended
        reactor.watch(self._news, self._take_news)

    def __iter__(self) -> Iterator[WorkerProcess]:
        return iter(list(self._workers.values()))

    def __len__(self) -> int:
        return len(self._workers)

    def running(self) -> list[WorkerProcess]:
        """The workers that have a process, as far as is known."""
        return [worker for worker in self._workers.values() if worker.running]

    def find(self, incarnation: str) -> WorkerProcess | None:
        return self._workers.get(incarnation)

    def any_ended(self) -> bool:
        """Whether some end has not been reported yet."""
        return any(not worker.living for worker in self._workers.values())

    # Starting and draining

    def staff(self, pool: Pool, settings: Settings, sharing: Mapping[str, Pool]) -> None:
        """Start missing workers of a pool and drain surplus ones. `sharing` are the pools with the same image."""
        now = time.monotonic()
        if pool.untried and pool.asleep:
            self._try_out(pool, settings, sharing, now)
        before = self.templates.before(pool.name)
        missing = pool.missing(now, unproven=before is not None)
        for _ in range(missing.new):
            try:
                template = self.templates.current(pool, settings, sharing, now)
            except OSError as error:
                self._back_off(pool, _UNFORKED.format(what="template", why=error.strerror))
                break
            if not self._ask(pool, template, now):
                break
        for _ in range(missing.old if before is not None else 0):
            assert before is not None
            if not self._ask(pool, before, now):
                break
        for worker in pool.to_drain():
            worker.drain()

    def _try_out(self, pool: Pool, settings: Settings, sharing: Mapping[str, Pool], now: float) -> None:
        """After a reload, load the new code of a sleeping pool, to report whether it can be loaded.

        The old code is dropped: the pool has no worker that it would have to replace meanwhile.
        """
        pool.untried = False
        self.templates.forget(pool.name)
        if pool.closing:
            return
        try:
            self.templates.current(pool, settings, sharing, now).try_out(pool.name, now)
        except OSError as error:
            self._back_off(pool, _UNFORKED.format(what="template", why=error.strerror))

    def _ask(self, pool: Pool, template: TemplateProcess, now: float) -> bool:
        """Request one more worker from a template. Returns False if there is no free slot."""
        if self._slots.full:
            pool.reason = f"the scoreboard has no room for more than {MAX_SLOTS - 1} workers"
            return False
        incarnation, name = str(uuid.uuid4()), pool.workers.next_name(pool.name)
        device = pool.workers.next_device(name, pool.settings.gpus, pool.target)
        number, slot = self._slots.take(incarnation, name)
        settings = template.spec.pools[pool.name]
        worker = WorkerProcess(
            name, incarnation, number, slot, settings, template, now, device, pool.failures.suspicion.cautious
        )
        worker.stale = "reload" if template.superseded else ""
        pool.workers[incarnation] = self._workers[incarnation] = worker
        template.ask(pool.name, name, incarnation, number, device, now, cautious=worker.cautious)
        return True

    def cancel(self, cancels: Iterable[tuple[int, int, str]], now: float) -> None:
        """Request that these runs stop, each given as job, token and the worker's incarnation."""
        for job, token, incarnation in cancels:
            worker = self.find(incarnation)
            if worker is not None:
                worker.slot.requests.cancel(job, token, Cancel.REQUESTED)
                worker.ladder.cancel(job, token, now)

    def drain_all(self) -> None:
        """Drain all workers. Workers that wait for an image that is still loading are dropped."""
        for worker in self:
            worker.drain()
        for incarnation in self.templates.retire_unready():
            self._forget_pending(incarnation)

    def replace_all(self) -> None:
        """After a reload, mark every worker for replacement. A pool without workers needs no old image."""
        for pool in self._pools.values():
            if pool.asleep:
                self.templates.forget(pool.name)
        self.templates.supersede()
        for worker in self._workers.values():
            worker.stale = worker.stale or "reload"

    def look_around(self, now: float) -> None:
        """Do the periodic checks. The kernel's out-of-memory counter is read only once a second, so that a death that
        is handled a moment later still sees its change.
        """
        if now >= self._look_at:
            self._look_at = now + 1.0
            self._oom.look()
        self.templates.spare_memory(self._workers.values(), self._pools, now)
        self.outputs.tell_dropped(now)
        for template in self.templates.stuck(now):
            self.broken(template, template.why_broken)

    # Messages

    def hear(self) -> None:
        """Process the templates' messages."""
        for template in self.templates:
            template.flush()
            if self._reactor.is_readable(template.fileno()):
                template.hear(self)
            if template.gone:
                self._lose_template(template)

    def forked(self, template: TemplateProcess, incarnation: str, pid: int, pidfd: int, stderr: int) -> None:
        worker = self._workers.get(incarnation)
        if worker is None:  # dropped in the meantime
            ending.send_signal(pidfd, 9)
            os.close(pidfd)
            os.close(stderr)
            return
        output = WorkerOutput(stderr, worker.name, self._outlet, lambda: worker.slot.work.run)
        worker.forked(pid, pidfd, output, time.monotonic())
        self._reactor.watch(pidfd, partial(self._notice_end, worker))
        self.outputs.watch(output)

    def exited(self, template: TemplateProcess, incarnation: str, status: int, peak_memory: int) -> None:
        worker = self._workers.get(incarnation)
        if worker is not None:
            worker.end(time.monotonic(), status, peak_memory)

    def unwatched(self, template: TemplateProcess, incarnation: str, pid: int) -> None:
        """We cannot open more descriptors, so the worker's were lost in transit; its template kills it."""
        worker = self._workers.get(incarnation)
        if worker is not None:
            worker.pid = pid
            worker.kill(exit_reason.UNWATCHED)
            self._back_off(self._pools[worker.pool], f"no worker can be watched: {os.strerror(errno.EMFILE)}", worker)

    def unforked(self, template: TemplateProcess, incarnation: str, why: str) -> None:
        self._lose_pending(incarnation, _UNFORKED.format(what="worker", why=why))

    def broken(self, template: TemplateProcess, why: str) -> None:
        for incarnation in list(template.asked):
            worker = self._workers.get(incarnation)
            self._lose_pending(incarnation, why if worker is None else template.why_broken_for(worker.pool))
        for name in template.take_tried_out():
            if name in self._pools:
                self._back_off(self._pools[name], template.why_broken_for(name))

    def reap(self) -> None:
        """Reap our children: maintainers, admin processes, templates, and workers whose template died before them."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for template in self.templates:
                if template.pid == pid:
                    template.status = status
            for worker in self._workers.values():
                if worker.pid == pid:
                    worker.end(time.monotonic(), status, usage.ru_maxrss * 1024)

    def _kill_orphans(self) -> None:
        """Kill processes started by the workers of a dead template: they become our children one after another."""
        ours = {process.pid for process in self._supervised} | {worker.pid for worker in self._workers.values()}
        ours.update(self.templates.pids())
        for pid in set(kernel.children(os.getpid()) or ()) - ours - self._inherited:
            ending.signal_child(pid, signal.SIGKILL)  # our own unreaped child

    def _notice_end(self, worker: WorkerProcess) -> None:
        worker.end(time.monotonic())
        self._reactor.unwatch(worker.pidfd)  # it stays readable forever; once is enough

    def _take_news(self) -> None:
        with contextlib.suppress(
            BlockingIOError
        ):  # another process with the descriptor, even a handler, may have read it
            os.eventfd_read(self._news)

    def _lose_template(self, template: TemplateProcess) -> None:
        """Its workers die with it. No job is charged, unless the pool is isolated because this happens repeatedly,
        and only one job was running.
        """
        now = time.monotonic()
        if not (template.ready or template.retired or template.why_broken):
            # The code it was loading has ended it, and may do so again.
            self.reap()
            template.why_broken = f"the template ended while it was loading the handler{template.ending}"
            self.broken(template, template.why_broken)
        self.templates.lose(template)
        self._orphans_until = now + _ORPHANED
        orphaned = [worker for worker in self._workers.values() if worker.template is template]
        if orphaned or not (template.retired or template.why_broken):
            self._log.error("template_died", pid=template.pid, workers=len(orphaned))
        accused = self._accused(template, orphaned, now)
        for pool in self.templates.died_by_itself(template, self._pools):
            if pool.failures.template_deaths.isolated(now):
                self._log.warning("pool_isolated", pool=pool.name, deaths=len(pool.failures.template_deaths.at))
        for worker in orphaned:
            if worker.status in (None, signal.SIGKILL):
                # The kernel kills them with it, and may already have done so.
                worker.kill(exit_reason.ALONE if worker is accused else exit_reason.TEMPLATE)
            if worker.pid == 0:
                worker.end(now)

    def _accused(self, template: TemplateProcess, workers: list[WorkerProcess], now: float) -> WorkerProcess | None:
        """The one worker with a job in an isolated pool, when its template dies."""
        if not (template.alone and template.ready) or template.retired or len(workers) != 1:
            return None
        [worker] = workers
        slot, pool = worker.slot.read(), self._pools[worker.pool]
        if not slot.job or not pool.failures.template_deaths.isolated(now):
            return None
        pool.failures.template_deaths = pool.failures.template_deaths.charge(slot.job, worker.settings.max_crashes)
        return worker

    def _lose_pending(self, incarnation: str, why: str) -> None:
        """A requested worker could not be started."""
        worker = self._forget_pending(incarnation)
        if worker is not None:
            self._back_off(self._pools[worker.pool], why, worker)

    def _forget_pending(self, incarnation: str) -> WorkerProcess | None:
        worker = self._workers.pop(incarnation, None)
        if worker is not None:
            self._pools[worker.pool].workers.pop(incarnation, None)
            self._slots.give_back(worker.settled())
        return worker

    def _back_off(self, pool: Pool, why: str, worker: WorkerProcess | None = None) -> None:
        if pool.failures.unstarted(why, time.monotonic(), worker):
            self._log.error("pool_broken", pool=pool.name, problem=why)

    # Ends of workers

    def ends(self) -> list[float | None]:
        """When each end must be handled even if its cause is not known yet."""
        return [worker.explained_at for worker in self._workers.values()]

    def report_ends(self, now: float) -> None:
        """Find the cause of each end, report it to settle the jobs, and make room for a successor."""
        for worker in list(self._workers.values()):
            if worker.explained_at is not None and now >= worker.explained_at:
                self._report(worker, now)
        if now < self._orphans_until:
            self._kill_orphans()

    def _report(self, worker: WorkerProcess, now: float) -> None:
        pool, slot = self._pools[worker.pool], worker.slot.read()
        if worker.output is not None:
            worker.output.drain(now)
        known = Circumstances(
            worker.status,
            kill=worker.killed,
            tail=b"" if worker.output is None else worker.output.tail,
            peak_memory=worker.peak_memory,
            out_of_memory=self._oom.struck,
            timeout=worker.settings.timeout,
            ran=now - slot.started if slot.job else None,
            cautious=worker.cautious,
            suspects=frozenset(pool.failures.suspicion.jobs),
        )
        ended, report = worker.report(known, slot)
        self._reported[self._maintainer.report(report)] = worker
        self._forget(worker, pool)
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
            job=ended.run[0] or None,
        )

    def _forget(self, worker: WorkerProcess, pool: Pool) -> None:
        self._workers.pop(worker.incarnation, None)
        pool.workers.pop(worker.incarnation, None)
        self._reactor.unwatch(worker.pidfd)
        if worker.output is not None:
            self._reactor.unwatch(worker.output.descriptor)
        worker.close()

    def free_acknowledged(self) -> None:
        """Free the slots of workers whose end has been settled."""
        for number in [n for n in self._reported if n not in self._maintainer.unacknowledged]:
            self._slots.give_back(self._reported.pop(number).settled())
