"""The supervisor: manages the processes, opens no database once it runs, has one thread and never blocks.

`run` has the main loop; each of its steps handles one concern.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, TextIO, cast

from supervisor.config.settings import Settings
from supervisor.domain.errors import ConfigError, StoreError
from supervisor.domain.text import without_password
from supervisor.maintenance.maintainer import Orders
from supervisor.maintenance.messages import trouble_of
from supervisor.store.base import Engine, OwnerLock, SupervisorRecord
from supervisor.supervision import exit_reason
from supervisor.supervision.children import STARTING, AdminProcess, MaintainerClient, Serve, Slots, orders_of
from supervisor.supervision.database_health import DatabaseHealth
from supervisor.supervision.device_memory import DeviceMeter
from supervisor.supervision.ends import Ends
from supervisor.supervision.known_sizes import KnownSizes
from supervisor.supervision.memory_arbiter import MemoryArbiter
from supervisor.supervision.plan import next_try
from supervisor.supervision.pool import look_at
from supervisor.supervision.pools import Pools, ReloadOutcome
from supervisor.supervision.staffing import Staffing
from supervisor.supervision.stopping import Burst, Stopping
from supervisor.supervision.supervised_process import SupervisedProcess
from supervisor.supervision.templates import Templates
from supervisor.supervision.watchdog import cancel, watch
from supervisor.supervision.worker_output import Outputs
from supervisor.system import kernel, lifeline, memory_limit, settled_notice, signals
from supervisor.system.channel import Message
from supervisor.system.outlet import Outlet
from supervisor.system.reactor import Reactor
from supervisor.system.scoreboard import ADMIN_SLOT, MAINTAINER_SLOT, Scoreboard
from supervisor.system.systemd import Notifier
from supervisor.system.timers import Timers
from supervisor.telemetry import configure, events

if TYPE_CHECKING:
    from supervisor.supervision.source_watch import SourceWatch

TICK = 1.0  # seconds between two reads of the scoreboard
MAINTAINER_LIMIT = 5  # consecutive early deaths of maintainers after which a burst gives up
_FAREWELL = 5.0  # seconds for the last reports and for the children to end


@dataclass(eq=False)
class Supervisor:
    """One run of `supervisor run`. `reload` reads the configuration again or raises ConfigError; `serve_admin` runs
    in the admin process.
    """

    settings: Settings
    engine: Engine
    board: Scoreboard
    owner: OwnerLock
    record: SupervisorRecord
    _: KW_ONLY
    reload: Callable[[], Settings]
    serve_admin: Serve
    burst: Burst | None = None
    sources: SourceWatch | None = None  # for development: changes of these files cause a reload
    drain_then_exit: bool = False

    def __post_init__(self) -> None:
        self._log = events(process="supervisor")
        self._notifier = Notifier()
        self._reactor = Reactor()
        self._outlet = Outlet()
        self._maintainer = SupervisedProcess("maintainer", self.board, MAINTAINER_SLOT, self._reactor)
        self._admin = SupervisedProcess("admin", self.board, ADMIN_SLOT, self._reactor, starting=STARTING)
        slots = Slots(self.board)
        self._client = MaintainerClient(self.engine, self.board, slots, self._maintainer)
        self._health = DatabaseHealth(self.engine.ownership.writers(), self.owner, waits=self.burst is None)
        self._pools = Pools()
        self._admin_process = AdminProcess(self.serve_admin, self._admin, self._pools.wakes)
        self._templates = Templates(self.record.id, self.engine, self.board, self._reactor)
        self._outputs = Outputs(
            self._reactor, self._outlet, lambda: [w.output for w in self._pools.workers() if w.output]
        )
        self._ends = Ends(self._pools, self._templates, self._reactor, self._client)
        self._staffing = Staffing(self._pools, self._templates, slots, self._outputs, self._ends, self._reactor)
        self._arbiter = MemoryArbiter(
            self._pools,
            self._templates,
            KnownSizes(self.engine.database.folder),
            DeviceMeter(),
            pressure_file=memory_limit.pressure_file(),
        )
        self._reloads: int | None = None
        self._stopping = Stopping()
        self._next_tick = 0.0
        self._deadlines: list[float | None] = []  # of running jobs, and of runs that are to be stopped
        self._ticking = False
        self._ready = False
        self._outcome = ReloadOutcome()
        self._duties: dict[str, Any] = {}  # the failing duties of the maintainer
        self._timers = self._all_timers()

    def _all_timers(self) -> Timers:
        """Everything that happens at a given time, without an event."""
        timers = Timers()
        timers.add("tick", lambda: [self._next_tick])
        timers.add("stop", self._stopping.moments)
        timers.add("ends", self._ends.moments)
        timers.add("floods", self._outputs.floods)
        timers.add("deadlines", lambda: self._deadlines)
        timers.add("maintainer", lambda: [self._maintainer.restart_at])
        if self.sources is not None:
            timers.add("sources", self.sources.moments)
        timers.add("admin", lambda: [self._admin_process.due_at])
        timers.add("pools", lambda: [] if self._stopping.why else [next_try(pool) for pool in self._pools.values()])
        return timers

    def run(self) -> int:
        """Run until a stop is requested or the burst is over. Returns the exit code.

        Raises StoreError if the database was replaced by another file: only a new start can use it.
        """
        self._start()
        while not self._stopping.over(self._pools.workers(), time.monotonic()):
            self._wait()
            self._hear_maintainer()
            self._admin_process.attend(time.monotonic())
            self._staffing.hear()
            self._outputs.read_floods(time.monotonic())
            self._ends.report(time.monotonic())
            self._mark_time()
            self._deadlines = watch(self._pools, time.monotonic(), ticking=self._ticking)
            self._rescale()
            self._heed_sources()
            self._publish()
        self._leave()
        if self._health.lost:
            raise StoreError(self._health.lost)
        return self.burst.exit_code if self.burst else 0

    # Start

    def _start(self) -> None:
        kernel.become_subreaper()
        lifeline.hold()
        settled_notice.hold()
        configure(self.settings.log.format, self.settings.log.level, cast("TextIO", self._outlet))
        self._inbox = signals.Inbox(
            obeyed=(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD),
            ignored=(signal.SIGUSR1, signal.SIGUSR2),
        )
        self._reactor.watch(self._inbox.fileno(), self._obey_signals)
        if self.sources is not None:
            self._reactor.watch(self.sources.fileno(), self.sources.hear)
        self._make_pools(self.settings)
        self._client.start(self._orders(), time.monotonic())
        self._admin_process.open(self.settings)
        self._log.info(
            "supervisor_started",
            pid=os.getpid(),
            database=without_password(self.engine.url),
            pools=sorted(self._pools),
            config=str(self.settings.path),
        )

    def _make_pools(self, settings: Settings) -> None:
        self._pools.configure(settings.pools)
        self._arbiter.configure(settings.machine)

    def _orders(self) -> Orders:
        return orders_of(self.settings, self.record, self._pools, burst=self.burst is not None)

    # The loop's steps

    def _wait(self) -> None:
        """Sleep until something happens or is due. Signals are obeyed here."""
        self._reactor.wait(self._timers.sleep(time.monotonic()))

    def _obey_signals(self) -> None:
        for number in self._inbox.take():
            if number in (signal.SIGTERM, signal.SIGINT):
                self._stop(signals.name_of(number))
            elif number == signal.SIGHUP:
                self._reload("SIGHUP")
            elif number == signal.SIGCHLD:
                self._ends.reap()

    def _hear_maintainer(self) -> None:
        """A stuck or dead maintainer is replaced; reports wait for the next one."""
        now = time.monotonic()
        if self._maintainer.due(now):
            self._client.start(self._orders(), time.monotonic())
        self._client.hear(self._obey_maintainer)
        ended = self._maintainer.check(now)
        if ended and self.burst is not None and self._maintainer.early_deaths >= MAINTAINER_LIMIT:
            self.burst.give_up()
            self._stop("the maintainer dies repeatedly")

    def _obey_maintainer(self, message: Message) -> None:
        if "recovered" in message:
            self._heed(trouble_of(None))
        elif "trouble" in message:
            self._heed(message)
        elif "depths" in message:
            self._pools.take_depths(message["depths"])
        elif "duties" in message:
            self._duties = message["duties"]
            self._next_tick = 0.0  # news for `status`
        elif "controls" in message:
            self._obey_controls(message["controls"])
        elif "cancels" in message:
            cancel(self._pools, message["cancels"], time.monotonic())
        elif "burst" in message:
            self._follow_burst(message["burst"])

    def _heed(self, news: Message) -> None:
        """The database cannot be used, or can be used again. After the file was replaced, nothing can be settled any
        more, so the supervisor ends immediately: its next start opens the new file.
        """
        self._health.heed(news)
        self._next_tick = 0.0  # news for `status`
        self._notifier.status(self._health.trouble or f"{len(self._pools)} pools")
        if self._health.lost and self._stopping.why != self._health.lost:
            self._stop(self._health.lost)
            self._stopping.hurry(time.monotonic())

    def _obey_controls(self, controls: Mapping[str, Any]) -> None:
        self._pools.take_sizes(controls["sizes"])
        if self._reloads is not None and controls["reloads"] > self._reloads:
            self._reload("supervisor reload", controls["reloads"])
        self._reloads = controls["reloads"]

    def _follow_burst(self, news: Mapping[str, Any]) -> None:
        if self.burst is not None and not self._stopping.why:
            why = self.burst.follow(news, self._pools.values(), unsettled=self._ends.unsettled())
            if why:
                self._stop(why)

    def _mark_time(self) -> None:
        """Start a tick if it is due. Most reads of the scoreboard happen once a tick, when idle once a second."""
        now = time.monotonic()
        self._ticking = now >= self._next_tick
        if self._ticking:
            self._next_tick = now + self._tick()
            for pool in self._pools.values():
                pool.scale.rate.measure(pool.workers.living(), now)
            self._ends.look_around(now)
            self._staffing.look_around(now)
            self._arbiter.look_around(now)
            self._outputs.tell_dropped(now)
            self._health.free_writers(self._pools.running(), (self._maintainer, self._admin), now)
            self._heed_gate()
        self._notifier.alive(now)

    def _heed_gate(self) -> None:
        """Workers look at it themselves before they claim. What runs meanwhile is the supervisor's business."""
        gate, running = self.board.gate, [worker for worker in self._pools.running() if worker.slot.read().claims]
        if gate.lapsed and self.settings.on_partition == "stop":
            for worker in running:
                worker.kill(exit_reason.PARTITION)
        to_exit = self.drain_then_exit or self.burst is not None  # a burst would wait for ever for the end of its jobs
        if to_exit and gate.drained and not (running or self._stopping.why):
            self._stop("its host is drained")

    def _tick(self) -> float:
        """Seconds between two ticks: short enough for the shortest time limit and for systemd's watchdog."""
        shortest = min((min(pool.settings.timeouts) for pool in self._pools.values()), default=TICK * 4)
        return min(max(0.05, shortest / 4), TICK, self._notifier.interval or TICK)

    def _rescale(self) -> None:
        """Bring every pool to its target size. There are no workers until recovery is complete."""
        if not self._client.recovered or self._stopping.why:
            return
        now = time.monotonic()
        targets = {pool.name: pool.scale.target for pool in self._pools.values()}
        for pool in self._pools.values():
            for worker in pool.workers.living():
                if look_at(pool, worker, now):
                    self._arbiter.learn(worker)
            pool.decide(now)
        self._arbiter.divide(now)
        for pool in list(self._pools.values()):
            before = targets[pool.name]
            after, why = pool.scale.target, pool.scale.reason
            if after != before:
                self._ticking = True  # news for `status`
                self._log.info("pool_scaled", pool=pool.name, before=before, target=after, why=why)
            self._staffing.staff(pool, self.settings)
            if pool.closing and not pool.workers:
                self._pools.remove(pool)
        if not self._ready:
            self._ready = True
            self._notifier.ready(f"{len(self._pools)} pools")

    def _publish(self) -> None:
        """Post the state for `status`, and report progress to the observer."""
        self._outlet.flush()
        if self._ticking:
            now = time.monotonic()
            status = {
                "pid": os.getpid(),
                "maintainer": self._maintainer.pid,
                "admin": self._admin_process.supervisor_status(),
                "stopping": self._stopping.why,
                "trouble": self._health.trouble,
                "duties": self._duties,
                "log_lost": self._outlet.lost,
                "templates": self._templates.pids(),
                "pools": self._pools.status(now),
                "memory": self._arbiter.status(),
                "reload": self._reload_outcome(now),
            }
            self.board.post(status)
        if self.burst is not None:
            self.burst.show(self._pools.workers(), self._ends.finished_jobs)

    # Reload and stop

    def _heed_sources(self) -> None:
        """Reload after changes of the files that are watched, and say whether that worked."""
        if self.sources is None or self._stopping.why:
            return
        if changed := self.sources.due(time.monotonic()):
            self._reload(f"changed: {changed}")
            self.sources.follow(self.settings)
        if self.sources.waiting:
            self.sources.tell(self._reload_outcome(time.monotonic()), time.monotonic())

    def _reload_outcome(self, now: float) -> dict[str, Any] | None:
        return self._outcome.follow(self._pools, now)

    def _reload(self, why: str, number: int | None = None) -> None:
        """Read the configuration again; an invalid one changes nothing. Workers are replaced one at a time."""
        if self._stopping.why:
            return
        self._notifier.reloading()
        try:
            settings = self.reload()
            self._make_pools(settings)
        except Exception as error:  # not even a fault of the reader's own ends a running supervisor
            problems = error.problems if isinstance(error, ConfigError) else [f"{type(error).__name__}: {error}"]
            self._outcome.refused(why, number, time.time(), problems, self.settings.path)
            self._next_tick = 0.0  # news for `status`
            self._notifier.ready("the configuration could not be reloaded")
            return
        self.settings = settings
        configure(settings.log.format, settings.log.level, cast("TextIO", self._outlet))
        self._staffing.replace_all()
        self._outcome.begun(number, time.time(), self._pools)
        self._client.replace(self._orders(), time.monotonic())
        self._admin_process.open(settings)
        self._log.info("reloaded", why=why, pools=sorted(settings.pools))
        self._notifier.ready(f"{len(settings.pools)} pools")

    def _stop(self, why: str) -> None:
        """The first call lets running jobs finish; the second releases the remaining jobs immediately."""
        if self._stopping.why:
            self._stopping.hurry(time.monotonic())
            return
        grace = max((pool.settings.shutdown_grace for pool in self._pools.values()), default=0.0)
        self._stopping.begin(why, grace, time.monotonic())
        workers = len(self._pools.workers())
        self._staffing.drain_all()
        self._log.info("stopping", why=why, grace_seconds=grace, workers=workers)
        self._notifier.stopping(why)

    def _leave(self) -> None:
        """Wait until every end is settled, and end the children. The maintainer, which ends last, removes
        this supervisor from the registry.
        """
        self._admin_process.close()
        self._templates.close()
        # A template may have been about to fork: wait until no process is left that could register a worker.
        left = self._ends.await_children(_FAREWELL, frozenset({self._maintainer.pid}))
        deadline = time.monotonic() + _FAREWELL
        while self._client.unacknowledged and not self._health.gone and time.monotonic() < deadline:
            self._reactor.wait(0.05)
            self._hear_maintainer()
        self._maintainer.dismiss(_FAREWELL)
        self._ends.await_children(_FAREWELL, left)
        self.owner.release(registered=self._client.recovered and not self._health.lost)
        self.board.remove()
        self._log.info("stopped", why=self._stopping.why)
