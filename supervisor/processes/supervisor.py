"""The supervisor: owns the processes, opens no database, has one thread and never blocks.

Its loop reads from top to bottom; each step below it is one concern.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from supervisor.config.settings import PoolSettings, Settings
from supervisor.domain.errors import ConfigError
from supervisor.domain.liveness import Signs, Verdict, judge
from supervisor.domain.policy import JobPolicy
from supervisor.maintenance.deaths import DeathReport
from supervisor.maintenance.maintainer import Orders, Ward
from supervisor.maintenance.renewer import LockTimes
from supervisor.processes import autopsy
from supervisor.processes.deadlines import Step
from supervisor.processes.launcher import Launcher
from supervisor.processes.pool import Pool, Waiting
from supervisor.processes.template import Nest
from supervisor.processes.upkeep import Upkeep
from supervisor.processes.worker_process import WorkerProcess
from supervisor.store.base import Engine, OwnerLock, SupervisorRecord, Wanted
from supervisor.system import kernel, signals
from supervisor.system.channel import Message
from supervisor.system.scoreboard import MAX_SLOTS, Cancel, Scoreboard, State
from supervisor.system.systemd import Notifier
from supervisor.telemetry import events

TICK = 1.0  # seconds between two looks at the scoreboard
MEMORY_TICK = 10.0
STATUS_PATIENCE = 0.2  # seconds to wait for a template's word on how a worker ended
_BROKEN_LIMIT = 3  # failed set-ups in a row after which a burst gives up


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a burst is, for a progress bar."""

    pending: int
    failed: int
    done: int
    workers: int
    busy: int


Observer = Callable[[Progress], None]


class Supervisor:
    """One run of `supervisor run`. `reload` reads the configuration anew or raises ConfigError."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        board: Scoreboard,
        owner: OwnerLock,
        record: SupervisorRecord,
        *,
        reload: Callable[[], Settings],
        burst: bool = False,
        observer: Observer | None = None,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._board = board
        self._owner = owner
        self._record = record
        self._load = reload
        self._burst = burst
        self._observer = observer
        self._log = events(process="supervisor")
        self._notifier = Notifier()
        self._selector = selectors.DefaultSelector()
        self._upkeep = Upkeep(engine, board)
        self._pools: dict[str, Pool] = {}
        self._launchers: list[Launcher] = []
        self._workers: dict[str, WorkerProcess] = {}
        self._buried: dict[int, WorkerProcess] = {}
        self._free = list(range(MAX_SLOTS - 1, 0, -1))
        self._generation = 0
        self._reloads: int | None = None
        self._stopping: str = ""
        self._stop_by = 0.0
        self._next_tick = self._next_memory = 0.0
        self._ticking = False
        self._over = False
        self._failed = self._pending = self._finished_jobs = 0
        self._posted: dict[str, Any] = {}
        self._ready = False

    def run(self) -> int:
        """Until told to stop, or until the burst is over. Returns the exit code."""
        self._start()
        while not self._finished():
            self._wait()
            self._obey_signals()
            self._hear_maintainer()
            self._hear_templates()
            self._bury_the_dead()
            self._mark_time()
            self._judge_beats()
            self._enforce_deadlines()
            self._watch_memory()
            self._rescale()
            self._spare_memory()
            self._publish()
        self._leave()
        return 1 if self._failed and self._burst else 0

    # Start

    def _start(self) -> None:
        kernel.become_subreaper()
        self._inbox = signals.Inbox(
            obeyed=(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD),
            ignored=(signal.SIGUSR1, signal.SIGUSR2),
        )
        self._news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._inbox.fileno(), selectors.EVENT_READ, None)
        self._selector.register(self._news, selectors.EVENT_READ, self._take_news)
        self._make_pools(self._settings)
        self._start_maintainer()
        self._log.info(
            "supervisor_started",
            pid=os.getpid(),
            database=self._engine.url,
            pools=sorted(self._pools),
            config=str(self._settings.path),
        )

    def _make_pools(self, settings: Settings) -> None:
        for name, pool_settings in settings.pools.items():
            if name in self._pools:
                self._pools[name].settings = pool_settings
                self._pools[name].closing = False
            else:
                wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
                self._pools[name] = Pool(pool_settings, wake)
        for name, pool in self._pools.items():
            pool.closing = name not in settings.pools

    def _start_maintainer(self) -> None:
        pools = {name: pool for name, pool in self._pools.items() if not pool.closing}
        orders = Orders(
            record=self._record,
            wards={
                name: Ward(
                    Wanted(pool.settings.types, " ".join(pool.settings.capabilities)),
                    pool.wake,
                    LockTimes(pool.settings.lock_time, pool.settings.heartbeat_timeout),
                )
                for name, pool in pools.items()
            },
            keep_done=self._settings.retention.done,
            keep_failed=self._settings.retention.failed,
            burst=self._burst,
            since=self._record.started_at,
        )
        self._upkeep.start(orders, time.monotonic())
        self._selector.register(self._upkeep.fileno(), selectors.EVENT_READ, None)

    # The loop's steps

    def _wait(self) -> None:
        """Sleep until something happens or is due; whoever registered a reader has it called."""
        timeout = max(0.0, self._next_due() - time.monotonic())
        for key, _ in self._selector.select(timeout):
            if key.data is not None:
                key.data()

    def _next_due(self) -> float:
        """When the loop must run although nothing happens, in monotonic seconds."""
        times = [self._next_tick]
        if self._stopping:
            times.append(self._stop_by)
        for worker in self._workers.values():
            if worker.dead_at is not None:
                times.append(worker.dead_at + STATUS_PATIENCE)
        for pool in self._pools.values():
            if pool.restarts.not_before:
                times.append(max(pool.restarts.not_before, time.monotonic() + 0.01))
        return min(times)

    def _obey_signals(self) -> None:
        for number in self._inbox.take():
            if number in (signal.SIGTERM, signal.SIGINT):
                self._stop(signals.name_of(number))
            elif number == signal.SIGHUP:
                self._reload("SIGHUP")
            elif number == signal.SIGCHLD:
                self._reap()

    def _reap(self) -> None:
        """Our own children: maintainers and templates, and workers whose template died before them."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for worker in self._workers.values():
                if worker.pid == pid:
                    worker.status = status
                    worker.peak_memory = usage.ru_maxrss * 1024
                    worker.dead_at = worker.dead_at or time.monotonic()

    def _hear_maintainer(self) -> None:
        if self._upkeep.running:
            descriptor = self._upkeep.fileno()
            self._upkeep.hear(self._obey_maintainer)
            self._free_acknowledged()
            if self._upkeep.ended():
                self._unwatch(descriptor)
                self._log.error("maintainer_died", pid=self._upkeep.pid)
            elif self._upkeep.stuck(time.monotonic()):
                self._log.error("maintainer_stuck", pid=self._upkeep.pid)
                self._upkeep.kill()
        elif self._upkeep.may_restart(time.monotonic()):
            self._start_maintainer()

    def _obey_maintainer(self, message: Message) -> None:
        if "recovered" in message:
            self._log.info("recovered", **message["recovered"])
        elif "depths" in message:
            for name, depth in message["depths"].items():
                if name in self._pools:
                    self._pools[name].waiting = Waiting(depth["due"], depth["oldest_age"])
        elif "controls" in message:
            self._obey_controls(message["controls"])
        elif "cancels" in message:
            for job, token, owner in message["cancels"]:
                if owner in self._workers:
                    worker = self._workers[owner]
                    worker.slot.request_cancel(job, token, Cancel.REQUESTED)
                    worker.enforcement.cancel(job, token, time.monotonic())
        elif "unhandled" in message:
            if message["unhandled"]:
                self._log.warning(
                    "types_unhandled", types=message["unhandled"], hint="no pool takes these types"
                )
        elif "burst" in message:
            self._follow_burst(message["burst"])

    def _obey_controls(self, controls: Mapping[str, Any]) -> None:
        for name, pool in self._pools.items():
            pool.fixed = controls["sizes"].get(name)
        if self._reloads is not None and controls["reloads"] > self._reloads:
            self._reload("supervisor reload")
        self._reloads = controls["reloads"]

    def _follow_burst(self, burst: Mapping[str, Any]) -> None:
        self._pending, self._failed = burst["pending"], burst["failed"]
        waiting = self._upkeep.unacknowledged or any(w.dead_at is not None for w in self._workers.values())
        broken = [
            p for p in self._pools.values() if p.restarts.failed_setups >= _BROKEN_LIMIT and p.waiting.due
        ]
        if broken and not self._stopping:
            self._failed = max(1, self._failed)
            self._log.error(
                "burst_given_up", pools=[p.name for p in broken], problem=broken[0].restarts.problem
            )
            self._stop("the burst cannot go on")
        elif burst["over"] and not waiting and not self._stopping:
            self._stop("the burst is over")

    def _hear_templates(self) -> None:
        for launcher in list(self._launchers):
            if launcher.gone:
                continue
            launcher.hear(self)
            if launcher.gone:
                self._lose_template(launcher)

    def _lose_template(self, launcher: Launcher) -> None:
        """Its workers die with it, through no fault of their jobs."""
        self._unwatch(launcher.fileno())
        self._launchers.remove(launcher)
        launcher.close()
        orphans = [w for w in self._workers.values() if w.launcher is launcher]
        if not launcher.retired and not launcher.why_broken and not self._stopping:
            self._log.error("template_died", pid=launcher.pid, workers=len(orphans))
        for worker in orphans:
            if worker.status is None and worker.dead_at is None:
                worker.kill(autopsy.TEMPLATE)
            if worker.pid == 0:
                worker.dead_at = time.monotonic()
        os.close(launcher.pidfd)

    def _bury_the_dead(self) -> None:
        """Name the cause, have the jobs settled, make room for a successor."""
        now = time.monotonic()
        for worker in list(self._workers.values()):
            if worker.dead_at is not None and (
                worker.status is not None or now >= worker.dead_at + STATUS_PATIENCE
            ):
                self._bury(worker, now)

    def _bury(self, worker: WorkerProcess, now: float) -> None:
        pool = self._pool_of(worker)
        slot = worker.slot.read()
        worker.read_stderr()
        finding = autopsy.examine(
            slot,
            worker.status,
            killed_for=worker.killed_for,
            tail=worker.tail,
            peak_memory=worker.peak_memory,
            timeout=pool.settings.timeout,
            ran=now - slot.started if slot.job else None,
        )
        policy = JobPolicy(pool.settings.retry, pool.settings.max_crashes, pool.settings.recover)
        report = DeathReport(
            worker.incarnation,
            worker.name,
            finding.charge,
            slot.job,
            slot.token,
            policy.encode(),
            finding.failure,
        )
        self._buried[self._upkeep.report(report)] = worker
        self._forget(worker)
        pool.workers.pop(worker.incarnation, None)
        self._finished_jobs += slot.done
        self._draw_conclusions(pool, worker, finding, slot.done, now)
        level = self._log.debug if finding.expected else self._log.warning
        level(
            "worker_left" if finding.expected else "worker_died",
            pool=pool.name,
            worker=worker.name,
            pid=worker.pid,
            reason=finding.reason,
            detail=finding.message,
            job=slot.job or None,
        )

    def _draw_conclusions(
        self, pool: Pool, worker: WorkerProcess, finding: autopsy.Finding, done: int, now: float
    ) -> None:
        if finding.broken or worker.killed_for == autopsy.STARTUP:
            pool.restarts = pool.restarts.broken(now, finding.message)
        elif not finding.expected and worker.killed_for != autopsy.TEMPLATE:
            pool.deaths += 1
            pool.restarts = pool.restarts.died(now, early=done == 0)

    def _forget(self, worker: WorkerProcess) -> None:
        self._workers.pop(worker.incarnation, None)
        for descriptor in (worker.pidfd, worker.stderr):
            self._unwatch(descriptor)
        worker.close()

    def _unwatch(self, descriptor: int) -> None:
        if descriptor >= 0 and descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def _free_acknowledged(self) -> None:
        """A slot is used again only when what it tells of its last worker has been settled."""
        for number in [n for n in self._buried if n not in self._upkeep.unacknowledged]:
            worker = self._buried.pop(number)
            worker.slot.clear()
            self._free.append(worker.number)

    def _mark_time(self) -> None:
        """Most looks at the scoreboard are made once a tick; idle, that is once a second."""
        now = time.monotonic()
        self._ticking = now >= self._next_tick
        if self._ticking:
            self._next_tick = now + self._tick()
            for pool in self._pools.values():
                pool.measure_rate(now)
        self._notifier.alive(now)

    def _tick(self) -> float:
        shortest = min((p.settings.timeout for p in self._pools.values()), default=TICK * 4)
        tick = max(0.05, min(TICK, shortest / 4))
        return min(tick, self._notifier.interval or tick)

    def _judge_beats(self) -> None:
        """Kill what is stopped or stuck; tolerate what is late but working."""
        if not self._ticking:
            return
        for worker in list(self._workers.values()):
            if worker.dead_at is None and worker.pid:
                self._judge(worker, self._pool_of(worker).settings)

    def _judge(self, worker: WorkerProcess, settings: PoolSettings) -> None:
        now = time.monotonic()
        slot = worker.slot.read()
        if slot.state is State.STARTING and now - worker.asked_at > settings.startup_timeout:
            worker.kill(autopsy.STARTUP)
            return
        if now - slot.beat < settings.heartbeat_timeout:
            worker.late = None
            return
        cpu, state = kernel.cpu_and_state(worker.pid)
        signs = Signs(now, slot.beat, cpu, state)
        worker.late = worker.late or signs
        verdict = judge(signs, worker.late, settings.heartbeat_timeout)
        if verdict is Verdict.STUCK:
            worker.signal(signals.DUMP_STACKS)
            worker.kill(autopsy.STUCK)
        elif verdict is Verdict.STOPPED:
            worker.kill(autopsy.STOPPED)

    def _enforce_deadlines(self) -> None:
        """Stop jobs that are over their time or cancelled: interrupt, then kill."""
        now = time.monotonic()
        for worker in self._workers.values():
            if worker.dead_at is not None or not worker.pid:
                continue
            slot = worker.slot.read()
            step = worker.enforcement.next_step(slot, now)
            if step is Step.INTERRUPT:
                worker.signal(signals.DUMP_STACKS)
                worker.slot.request_cancel(slot.job, slot.token, worker.enforcement.reason)
                worker.signal(signals.INTERRUPT)
            elif step is Step.KILL:
                over = worker.enforcement.reason is Cancel.TIMEOUT
                worker.kill(autopsy.TIME_LIMIT if over else autopsy.CANCELLED)
            due = worker.enforcement.due(slot)
            if due is not None:
                self._next_tick = min(self._next_tick, max(due, now + 0.01))

    def _watch_memory(self) -> None:
        """Replace workers that have grown beyond max_memory, after their job."""
        now = time.monotonic()
        if now < self._next_memory:
            return
        self._next_memory = now + MEMORY_TICK
        for worker in self._workers.values():
            done = worker.slot.read().done
            if worker.dead_at is None and worker.pid and done != worker.measured_done:
                worker.measured_done = done
                worker.memory = kernel.memory_of(worker.pid)[0]
                limit = self._pool_of(worker).settings.max_memory
                if limit is not None and worker.memory > limit and not worker.stale:
                    worker.stale = "over max_memory"

    def _rescale(self) -> None:
        """Bring every pool to the size that it should have."""
        if not self._upkeep.recovered or self._stopping:
            return
        now = time.monotonic()
        for pool in list(self._pools.values()):
            self._notice_ready(pool, now)
            before = pool.target
            decision = pool.decide(now)
            if decision.target != before:
                self._log.info(
                    "pool_scaled", pool=pool.name, before=before, target=pool.target, why=pool.reason
                )
            for _ in range(pool.missing(now)):
                self._ask_for_worker(pool, now)
            for worker in pool.leavers():
                self._drain(worker)
            if pool.closing and not pool.workers:
                del self._pools[pool.name]
                pool.close()
        if not self._ready:
            self._ready = True
            self._notifier.ready(f"{len(self._pools)} pools")

    def _notice_ready(self, pool: Pool, now: float) -> None:
        for worker in pool.living():
            slot = worker.slot.read()
            if not worker.was_ready and slot.state in (State.IDLE, State.BUSY):
                worker.was_ready = True
                pool.restarts = pool.restarts.ready()
                self._log.debug("worker_ready", worker=worker.name, seconds=round(now - worker.asked_at, 4))
            if slot.done and pool.restarts.early_deaths:
                pool.restarts = pool.restarts.finished_a_job()
            if slot.worn and not worker.stale:
                worker.stale = "near max_jobs_per_worker"

    def _ask_for_worker(self, pool: Pool, now: float) -> None:
        if not self._free:
            pool.reason = f"the scoreboard has no room for more than {MAX_SLOTS - 1} workers"
            return
        number = self._free.pop()
        incarnation, name = str(uuid.uuid4()), pool.next_name()
        slot = self._board.slot(number)
        slot.assign(incarnation, name)
        self._board.use_up_to(number)
        launcher = self._launcher_for(pool)
        worker = WorkerProcess(name, incarnation, number, slot, launcher, now)
        pool.workers[incarnation] = self._workers[incarnation] = worker
        launcher.ask(pool.name, name, incarnation, number, now)

    def _launcher_for(self, pool: Pool) -> Launcher:
        for launcher in self._launchers:
            if pool.name in launcher.nest.pools and not launcher.retired and not launcher.why_broken:
                return launcher
        key = _template_key(pool.settings)
        kin = {n: p for n, p in self._pools.items() if not p.closing and _template_key(p.settings) == key}
        nest = Nest(
            supervisor=self._record.id,
            folder=self._settings.folder,
            pools={name: p.settings for name, p in kin.items()},
            wakes={name: p.wake for name, p in kin.items()},
            news=self._news,
            log=self._settings.log,
        )
        launcher = Launcher(nest, self._engine, self._board, self._generation)
        self._selector.register(launcher.fileno(), selectors.EVENT_READ, None)
        self._launchers.append(launcher)
        return launcher

    def _drain(self, worker: WorkerProcess) -> None:
        if not worker.draining:
            worker.draining = True
            worker.signal(signals.DRAIN)

    def _spare_memory(self) -> None:
        """End templates that nobody needs: retired ones without workers, and those idle for long."""
        if not self._ticking:
            return
        now = time.monotonic()
        for launcher in self._launchers:
            used = any(worker.launcher is launcher for worker in self._workers.values())
            launcher.idle_since = None if used else launcher.idle_since or now
            patience = max(p.idle_timeout for p in launcher.nest.pools.values())
            if launcher.idle_since is not None and (launcher.retired or now - launcher.idle_since > patience):
                launcher.retired = True
                launcher.dismiss()
            if launcher.overdue(now, max(p.startup_timeout for p in launcher.nest.pools.values())):
                self._log.error("template_stuck", pid=launcher.pid)
                launcher.kill()

    def _publish(self) -> None:
        """Show `status` what we know, and a progress bar how far we are."""
        if not self._ticking and not self._burst:
            return
        bulletin = {
            "pid": os.getpid(),
            "maintainer": self._upkeep.pid,
            "stopping": self._stopping,
            "templates": [launcher.pid for launcher in self._launchers],
            "pools": {name: pool.bulletin() for name, pool in self._pools.items()},
        }
        if bulletin != self._posted:
            self._posted = bulletin
            self._board.post(bulletin)
        if self._observer is not None:
            self._observer(self._progress())

    def _progress(self) -> Progress:
        slots = [worker.slot.read() for worker in self._workers.values()]
        return Progress(
            pending=self._pending,
            failed=self._failed,
            done=self._finished_jobs + sum(slot.done for slot in slots),
            workers=len(slots),
            busy=sum(slot.state is State.BUSY for slot in slots),
        )

    # What templates tell us (the Listener of processes.launcher)

    def forked(self, launcher: Launcher, incarnation: str, pid: int, pidfd: int, stderr: int) -> None:
        worker = self._workers.get(incarnation)
        if worker is None:  # given up in the meantime
            kernel.send_signal(pidfd, 9)
            os.close(pidfd)
            os.close(stderr)
            return
        os.set_blocking(stderr, False)
        worker.pid, worker.pidfd, worker.stderr = pid, pidfd, stderr

        def died() -> None:
            worker.dead_at = worker.dead_at or time.monotonic()
            self._unwatch(pidfd)  # it stays readable for ever; one look is enough

        self._selector.register(pidfd, selectors.EVENT_READ, died)
        self._selector.register(stderr, selectors.EVENT_READ, lambda: self._read_stderr(worker))
        if worker.draining:
            worker.signal(signals.DRAIN)

    def exited(self, launcher: Launcher, incarnation: str, status: int, peak_memory: int) -> None:
        worker = self._workers.get(incarnation)
        if worker is not None:
            worker.status, worker.peak_memory = status, peak_memory
            worker.dead_at = worker.dead_at or time.monotonic()

    def unforked(self, launcher: Launcher, incarnation: str, why: str) -> None:
        self._lose_unborn(incarnation, f"a fork failed: {why}")

    def broken(self, launcher: Launcher, why: str) -> None:
        for incarnation in list(launcher.asked):
            self._lose_unborn(incarnation, why)

    def _lose_unborn(self, incarnation: str, why: str) -> None:
        """A worker that was asked for never came to be."""
        worker = self._workers.get(incarnation)
        if worker is None:
            return
        pool = self._pool_of(worker)
        now = time.monotonic()
        if now >= pool.restarts.not_before:  # several that failed together are one failure
            pool.restarts = pool.restarts.broken(now, why)
            self._log.error("pool_broken", pool=pool.name, problem=why)
        self._forget(worker)
        pool.workers.pop(incarnation, None)
        worker.slot.clear()
        self._free.append(worker.number)

    def _read_stderr(self, worker: WorkerProcess) -> None:
        if not worker.read_stderr():
            self._unwatch(worker.stderr)

    def _take_news(self) -> None:
        os.eventfd_read(self._news)

    def _pool_of(self, worker: WorkerProcess) -> Pool:
        return next(pool for pool in self._pools.values() if worker.incarnation in pool.workers)

    # Reload and stop

    def _reload(self, why: str) -> None:
        """Read the configuration anew; an invalid one changes nothing. Workers are replaced one at a time."""
        if self._stopping:
            return
        self._notifier.reloading()
        try:
            settings = self._load()
        except ConfigError as error:
            self._log.error("reload_refused", why=why, problems=error.problems, kept=str(self._settings.path))
            self._notifier.ready("the configuration could not be reloaded")
            return
        self._settings = settings
        self._generation += 1
        self._make_pools(settings)
        for launcher in self._launchers:
            launcher.retired = True
        for worker in self._workers.values():
            worker.stale = worker.stale or "reload"
        if self._upkeep.running:
            self._selector.unregister(self._upkeep.fileno())
            self._upkeep.retire()
        self._start_maintainer()
        self._log.info("reloaded", why=why, pools=sorted(settings.pools))
        self._notifier.ready(f"{len(settings.pools)} pools")

    def _stop(self, why: str) -> None:
        """First: finish what runs. Again: release what is left, at once."""
        if self._stopping:
            self._stop_by = time.monotonic()
            return
        grace = max((p.settings.shutdown_grace for p in self._pools.values()), default=0.0)
        self._stopping = why
        self._stop_by = time.monotonic() + grace
        self._log.info("stopping", why=why, grace_seconds=grace, workers=len(self._workers))
        self._notifier.stopping(why)
        for worker in self._workers.values():
            self._drain(worker)

    def _finished(self) -> bool:
        if not self._stopping:
            return False
        if self._workers and time.monotonic() >= self._stop_by:
            for worker in self._workers.values():
                worker.kill(autopsy.SHUTDOWN)
            self._stop_by = time.monotonic() + 1.0
        return not self._workers

    def _leave(self) -> None:
        """Everything is settled: let the children go and take our name out of the registry."""
        deadline = time.monotonic() + 5.0
        while self._upkeep.unacknowledged and time.monotonic() < deadline:
            self._next_tick = time.monotonic() + 0.05
            self._wait()
            self._hear_maintainer()
        self._upkeep.dismiss()
        for launcher in self._launchers:
            launcher.close()
        self._wait_for_children(deadline)
        kernel.kill_children()
        self._owner.release()
        self._board.remove()
        self._log.info("stopped", why=self._stopping)

    def _wait_for_children(self, deadline: float) -> None:
        while time.monotonic() < deadline and kernel.children(os.getpid()):
            self._reap()
            time.sleep(0.002)


def _template_key(settings: PoolSettings) -> tuple[Any, ...]:
    """Pools that agree in these share one template."""
    module = settings.handler.partition(":")[0]
    return module, tuple(sorted(settings.env.items())), settings.preload, settings.start
