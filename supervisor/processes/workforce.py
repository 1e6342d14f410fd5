"""Every worker of this supervisor: asks for them, hears of them, buries them."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
import uuid
from collections.abc import Iterable, Iterator

from supervisor.config.settings import Settings
from supervisor.domain.duration import human
from supervisor.domain.policy import JobPolicy
from supervisor.maintenance.deaths import DeathReport
from supervisor.processes import autopsy
from supervisor.processes.attended import Attended
from supervisor.processes.launcher import Launcher
from supervisor.processes.pool import Pool
from supervisor.processes.template import Nest
from supervisor.processes.upkeep import Upkeep
from supervisor.processes.worker_process import WorkerProcess
from supervisor.store.base import Engine
from supervisor.system import kernel, signals
from supervisor.system.oom import OomKiller
from supervisor.system.reactor import Reactor
from supervisor.system.scoreboard import MAX_SLOTS, Scoreboard
from supervisor.telemetry import events
from supervisor.worker.place import threads_of

_UNFORKED = "no {what} can be forked: {why}"
_UNLOADED = "importing the handler, and its set-up before the fork, did not end within startup_timeout, {limit}"
STATUS_PATIENCE = 0.2  # seconds to wait for a template's word on how a worker ended
_BEREAVED = 5.0  # seconds after a template's death in which what its workers had started comes to us


class Workforce:
    """The workers and the templates that they are forked from. Times are monotonic seconds.

    `deaths` report each end to the maintainer; a slot is used again only when that was acknowledged.
    """

    def __init__(
        self,
        supervisor: str,
        engine: Engine,
        board: Scoreboard,
        reactor: Reactor,
        upkeep: Upkeep,
        attended: Iterable[Attended],
    ) -> None:
        self._supervisor = supervisor
        self._engine = engine
        self._board = board
        self._reactor = reactor
        self._upkeep = upkeep
        self._attended = tuple(attended)
        self._log = events(process="supervisor")
        self._free = list(range(MAX_SLOTS - 1, 0, -1))
        self._buried: dict[int, WorkerProcess] = {}
        self._launchers: list[Launcher] = []
        self._workers: dict[str, WorkerProcess] = {}
        self._oom = OomKiller()
        self._look_at = 0.0
        self._news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._guests = frozenset(kernel.children(os.getpid()))  # somebody's who became us by exec
        self._sweep_until = 0.0
        self.finished_jobs = 0  # by workers that have ended
        reactor.watch(self._news, self._take_news)

    def __iter__(self) -> Iterator[WorkerProcess]:
        return iter(list(self._workers.values()))

    def __len__(self) -> int:
        return len(self._workers)

    def living(self) -> list[WorkerProcess]:
        """Those that have a process, as far as we know."""
        return [worker for worker in self._workers.values() if worker.pid and worker.dead_at is None]

    def find(self, incarnation: str) -> WorkerProcess | None:
        return self._workers.get(incarnation)

    def templates(self) -> list[int]:
        return [launcher.pid for launcher in self._launchers]

    # To hire and to let go

    def ask(self, pool: Pool, settings: Settings, kin: dict[str, Pool]) -> bool:
        """Ask a template for one more worker; False if none can be had now. `kin` are the pools that share it."""
        if not self._free:
            pool.reason = f"the scoreboard has no room for more than {MAX_SLOTS - 1} workers"
            return False
        now = time.monotonic()
        try:
            launcher = self._launcher_for(pool, settings, kin)
        except OSError as error:
            self._back_off(pool, now, _UNFORKED.format(what="template", why=error.strerror))
            return False
        number = self._free.pop()
        incarnation, name = str(uuid.uuid4()), pool.next_name()
        slot = self._board.slot(number)
        slot.assign(incarnation, name)
        self._board.use_up_to(number)
        worker = WorkerProcess(name, incarnation, number, slot, launcher, pool, now, pool.next_device(name))
        pool.workers[incarnation] = self._workers[incarnation] = worker
        launcher.ask(pool.name, name, incarnation, number, worker.device, now)
        return True

    def _launcher_for(self, pool: Pool, settings: Settings, kin: dict[str, Pool]) -> Launcher:
        for launcher in self._launchers:
            if pool.name in launcher.nest.pools and not launcher.retired and not launcher.why_broken:
                return launcher
        nest = Nest(
            supervisor=self._supervisor,
            folder=settings.folder,
            pools={name: p.settings for name, p in kin.items()},
            threads=threads_of(settings.pools),
            wakes={name: p.wake for name, p in kin.items()},
            news=self._news,
            log=settings.log,
        )
        launcher = Launcher(nest, self._engine, self._board)
        self._reactor.watch(launcher.fileno())
        self._launchers.append(launcher)
        return launcher

    def drain(self, worker: WorkerProcess) -> None:
        """Let a worker finish its job and leave."""
        if not worker.draining:
            worker.draining = True
            worker.signal(signals.DRAIN)

    def drain_all(self) -> None:
        """Let everybody leave. Whoever is still to be forked from an image that is being loaded is not waited for."""
        for worker in self:
            self.drain(worker)
        for launcher in self._launchers:
            if not launcher.ready:
                launcher.retired = True
                for incarnation in launcher.asked:
                    self._forget_unborn(incarnation)
                launcher.kill()

    def renew_templates(self) -> None:
        """After a reload: nothing more is forked from the old images, and every worker gets a successor."""
        for launcher in self._launchers:
            launcher.retired = True
        for worker in self._workers.values():
            worker.stale = worker.stale or "reload"

    def look_around(self, now: float) -> None:
        """Whether the kernel is short of memory, so that a death then can be told from a kill. Once a second, or a
        death that is dealt with a moment later would find it forgotten.
        """
        if now >= self._look_at:
            self._look_at = now + 1.0
            self._oom.look()

    def spare_memory(self, now: float) -> None:
        """End templates that nobody needs: retired ones without workers, and those idle for long."""
        for launcher in self._launchers:
            used = any(worker.launcher is launcher for worker in self._workers.values())
            launcher.idle_since = None if used else launcher.idle_since or now
            settings = launcher.nest.pools.values()
            patience = max(pool.idle_timeout for pool in settings)
            if launcher.idle_since is not None and (launcher.retired or now - launcher.idle_since > patience):
                launcher.retired = True
                launcher.dismiss()
            limit = max(pool.startup_timeout for pool in settings)
            if launcher.overdue(now, limit):
                self._log.error("template_stuck", pid=launcher.pid, ready=launcher.ready)
                if not launcher.ready:
                    launcher.why_broken = _UNLOADED.format(limit=human(limit))
                    self.broken(launcher, launcher.why_broken)
                launcher.kill()

    # To hear of them

    def hear(self) -> None:
        """Take in what the templates say."""
        for launcher in list(self._launchers):
            launcher.hear(self)
            if launcher.gone:
                self._lose_template(launcher)

    def forked(self, launcher: Launcher, incarnation: str, pid: int, pidfd: int, stderr: int) -> None:
        worker = self._workers.get(incarnation)
        if worker is None:  # given up in the meantime
            kernel.send_signal(pidfd, 9)
            os.close(pidfd)
            os.close(stderr)
            return
        os.set_blocking(stderr, False)
        worker.pid, worker.pidfd, worker.stderr = pid, pidfd, stderr
        worker.asked_at = time.monotonic()  # its own start-up begins now; importing may have taken minutes
        self._reactor.watch(pidfd, lambda: self._notice_end(worker))
        self._reactor.watch(stderr, lambda: self._read_stderr(worker))
        worker.slot.watch()
        if worker.draining:
            worker.signal(signals.DRAIN)

    def exited(self, launcher: Launcher, incarnation: str, status: int, peak_memory: int) -> None:
        worker = self._workers.get(incarnation)
        if worker is not None:
            worker.end(status, peak_memory)

    def unwatched(self, launcher: Launcher, incarnation: str, pid: int) -> None:
        """We may open no more descriptors, so its own were lost on the way here; its template kills it."""
        worker = self._workers.get(incarnation)
        if worker is not None:
            worker.pid, worker.killed_for = pid, autopsy.UNWATCHED
            why = f"no worker can be watched: {os.strerror(errno.EMFILE)}"
            self._back_off(worker.pool, time.monotonic(), why)

    def unforked(self, launcher: Launcher, incarnation: str, why: str) -> None:
        self._lose_unborn(incarnation, _UNFORKED.format(what="worker", why=why))

    def broken(self, launcher: Launcher, why: str) -> None:
        for incarnation in list(launcher.asked):
            self._lose_unborn(incarnation, why)

    def reap(self) -> None:
        """Our own children: maintainers, admin processes and templates, and workers whose template died before them."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for launcher in self._launchers:
                if launcher.pid == pid:
                    launcher.status = status
            for worker in self._workers.values():
                if worker.pid == pid:
                    worker.end(status, usage.ru_maxrss * 1024)

    def _kill_strays(self) -> None:
        """Kill what the workers of a dead template had started: they come to us one after another, as our children."""
        ours = {process.pid for process in self._attended} | {worker.pid for worker in self._workers.values()}
        ours.update(self.templates())
        for pid in set(kernel.children(os.getpid())) - ours - self._guests:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # our own unreaped child

    def _notice_end(self, worker: WorkerProcess) -> None:
        worker.dead_at = worker.dead_at or time.monotonic()
        self._reactor.unwatch(worker.pidfd)  # it stays readable for ever; one look is enough

    def _read_stderr(self, worker: WorkerProcess) -> None:
        if not worker.read_stderr():
            self._reactor.unwatch(worker.stderr)

    def _take_news(self) -> None:
        os.eventfd_read(self._news)

    def _lose_template(self, launcher: Launcher) -> None:
        """Its workers die with it, through no fault of their jobs."""
        if not (launcher.ready or launcher.retired or launcher.why_broken):
            # What it was loading has ended it, and may do so again.
            self.reap()
            launcher.why_broken = f"the template ended while it was loading the handler{launcher.ending}"
            self.broken(launcher, launcher.why_broken)
        self._reactor.unwatch(launcher.fileno())
        self._launchers.remove(launcher)
        launcher.close()
        self._sweep_until = time.monotonic() + _BEREAVED
        orphans = [worker for worker in self._workers.values() if worker.launcher is launcher]
        if orphans or not (launcher.retired or launcher.why_broken):
            self._log.error("template_died", pid=launcher.pid, workers=len(orphans))
        for worker in orphans:
            if worker.status in (None, signal.SIGKILL):
                # The kernel kills them with it, and may have done so before we came here.
                worker.kill(autopsy.TEMPLATE)
            if worker.pid == 0:
                worker.dead_at = time.monotonic()

    def _lose_unborn(self, incarnation: str, why: str) -> None:
        """A worker that was asked for never came to be."""
        worker = self._forget_unborn(incarnation)
        if worker is not None:
            self._back_off(worker.pool, time.monotonic(), why)

    def _forget_unborn(self, incarnation: str) -> WorkerProcess | None:
        worker = self._workers.pop(incarnation, None)
        if worker is not None:
            worker.pool.workers.pop(incarnation, None)
            worker.slot.clear()
            self._free.append(worker.number)
        return worker

    def _back_off(self, pool: Pool, now: float, why: str) -> None:
        if now >= pool.restarts.not_before:  # several that failed together are one failure
            pool.restarts = pool.restarts.broken(now, why)
            self._log.error("pool_broken", pool=pool.name, problem=why)

    # To bury them

    def next_funeral(self) -> float | None:
        """When a death must be dealt with although nobody has said how it came."""
        return min(
            (w.dead_at + STATUS_PATIENCE for w in self._workers.values() if w.dead_at is not None),
            default=None,
        )

    def bury_the_dead(self, now: float) -> None:
        """Name the cause, have the jobs settled, make room for a successor."""
        for worker in list(self._workers.values()):
            if worker.dead_at is not None and (worker.status is not None or now >= worker.dead_at + STATUS_PATIENCE):
                self._bury(worker, now)
        if now < self._sweep_until:
            self._kill_strays()

    def _bury(self, worker: WorkerProcess, now: float) -> None:
        settings, slot = worker.pool.settings, worker.slot.read()
        worker.read_stderr()
        finding = autopsy.examine(
            slot,
            worker.status,
            killed_for=worker.killed_for,
            tail=worker.tail,
            peak_memory=worker.peak_memory,
            out_of_memory=self._oom.struck,
            timeout=settings.timeout,
            ran=now - slot.started if slot.job else None,
        )
        policy = JobPolicy(settings.retry, settings.max_crashes, settings.recover, settings.lock_time).encode()
        report = DeathReport(
            worker.incarnation,
            worker.name,
            finding.charge,
            *autopsy.blamed(slot, worker.killed_for),
            policy,
            finding.failure,
            worker.number,
            slot.batch,
        )
        self._buried[self._upkeep.report(report)] = worker
        self._forget(worker)
        self.finished_jobs += slot.done
        # A batch that kills is smaller next time, so its deaths end by themselves.
        early = slot.done <= slot.lost and slot.batch <= 1
        worker.pool.learn(finding, early=early, born=worker.asked_at, now=now)
        worker.pool.count_restart(finding, worker.stale)
        log = self._log.debug if finding.expected else self._log.warning
        log(
            "worker_left" if finding.expected else "worker_died",
            pool=worker.pool.name,
            worker=worker.name,
            pid=worker.pid,
            reason=finding.reason,
            detail=finding.message,
            job=slot.job or None,
        )

    def _forget(self, worker: WorkerProcess) -> None:
        self._workers.pop(worker.incarnation, None)
        worker.pool.workers.pop(worker.incarnation, None)
        for descriptor in (worker.pidfd, worker.stderr):
            self._reactor.unwatch(descriptor)
        worker.close()

    def free_acknowledged(self) -> None:
        """Free the slots of those whose end has been settled."""
        for number in [n for n in self._buried if n not in self._upkeep.unacknowledged]:
            worker = self._buried.pop(number)
            worker.slot.clear()
            self._free.append(worker.number)

    def close(self) -> None:
        """Let all templates end; they kill what is left of their descendants first."""
        for launcher in self._launchers:
            launcher.close()
