"""The supervisor: owns the processes, opens no database, has one thread and never blocks.

Its loop reads from top to bottom; each step below it is one concern.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from supervisor.config.settings import Settings
from supervisor.domain.errors import ConfigError, StoreError
from supervisor.maintenance.maintainer import Orders, trouble_of
from supervisor.processes import autopsy
from supervisor.processes.attended import Attended
from supervisor.processes.burst import Burst, Observer
from supervisor.processes.oversight import enforce_deadline, judge_beat, watch_memory
from supervisor.processes.pool import Pool, Waiting
from supervisor.processes.reception import STARTING, Reception, Serve
from supervisor.processes.storage import Storage
from supervisor.processes.upkeep import Upkeep
from supervisor.processes.workforce import Workforce
from supervisor.store.base import Engine, OwnerLock, SupervisorRecord
from supervisor.system import kernel, lifeline, signals
from supervisor.system.channel import Message
from supervisor.system.reactor import Reactor
from supervisor.system.scoreboard import ADMIN_SLOT, MAINTAINER_SLOT, Cancel, Scoreboard
from supervisor.system.systemd import Notifier
from supervisor.telemetry import configure, events

TICK = 1.0  # seconds between two looks at the scoreboard
MEMORY_TICK = 10.0
MAINTAINER_LIMIT = 5  # early deaths of maintainers in a row after which a burst gives up
_FAREWELL = 5.0  # seconds for the last reports and the children's ends


class Supervisor:
    """One run of `supervisor run`. `reload` reads the configuration anew or raises ConfigError; `serve_admin` is
    what the admin process does.
    """

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        board: Scoreboard,
        owner: OwnerLock,
        record: SupervisorRecord,
        *,
        reload: Callable[[], Settings],
        serve_admin: Serve,
        burst: bool = False,
        observer: Observer | None = None,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._board = board
        self._owner = owner
        self._record = record
        self._load = reload
        self._burst = Burst() if burst else None
        self._observer = observer
        self._log = events(process="supervisor")
        self._notifier = Notifier()
        self._reactor = Reactor()
        self._maintainer = Attended("maintainer", board, MAINTAINER_SLOT, self._reactor)
        self._admin = Attended("admin", board, ADMIN_SLOT, self._reactor, starting=STARTING)
        self._upkeep = Upkeep(engine, board, self._maintainer)
        self._reception = Reception(serve_admin, self._admin)
        self._storage = Storage(engine.writers(), owner)
        attended = (self._maintainer, self._admin)
        self._workforce = Workforce(record.id, engine, board, self._reactor, self._upkeep, attended)
        self._pools: dict[str, Pool] = {}
        self._reloads: int | None = None
        self._stopping = ""  # why, once we are
        self._stop_by = 0.0
        self._next_tick = self._next_memory = 0.0
        self._ticking = False
        self._ready = False
        self._lost = ""  # why the database is gone for good
        self._posted: dict[str, Any] = {}
        self._unhandled: set[str] = set()

    def run(self) -> int:
        """Until told to stop, or until the burst is over. Returns the exit code.

        Raises StoreError if the database was replaced by another file: only a fresh start can work with that.
        """
        self._start()
        while not self._finished():
            self._wait()
            self._obey_signals()
            self._hear_maintainer()
            self._reception.attend(time.monotonic())
            self._workforce.hear()
            self._workforce.bury_the_dead(time.monotonic())
            self._mark_time()
            self._judge_beats()
            self._enforce_deadlines()
            self._watch_memory()
            self._rescale()
            self._publish()
        self._leave()
        if self._lost:
            raise StoreError(self._lost)
        return self._burst.exit_code if self._burst else 0

    # Start

    def _start(self) -> None:
        kernel.become_subreaper()
        lifeline.hold()
        self._inbox = signals.Inbox(
            obeyed=(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD),
            ignored=(signal.SIGUSR1, signal.SIGUSR2),
        )
        self._reactor.watch(self._inbox.fileno())
        self._make_pools()
        self._start_maintainer()
        self._reception.open(self._settings)
        self._log.info(
            "supervisor_started",
            pid=os.getpid(),
            database=self._engine.url,
            pools=sorted(self._pools),
            config=str(self._settings.path),
        )

    def _make_pools(self) -> None:
        wanted = self._settings.pools
        for name, settings in wanted.items():
            if name in self._pools:
                self._pools[name].reconfigure(settings)
            else:
                wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
                self._pools[name] = Pool(settings, wake)
        for name, pool in self._pools.items():
            pool.closing = name not in wanted

    def _start_maintainer(self) -> None:
        orders = Orders(
            record=self._record,
            wards={name: pool.ward() for name, pool in self._pools.items() if not pool.closing},
            leaving={name: pool.ward().locks for name, pool in self._pools.items() if pool.closing},
            keep_done=self._settings.retention.done,
            keep_failed=self._settings.retention.failed,
            schedules=self._settings.schedules,
            burst=self._burst is not None,
            since=self._record.started_at,
        )
        self._upkeep.start(orders, time.monotonic())

    # The loop's steps

    def _wait(self) -> None:
        """Sleep until something happens or is due."""
        times = [self._next_tick]
        if self._stopping:
            times.append(self._stop_by)
        due = (self._workforce.next_funeral(), self._maintainer.restart_at, self._reception.due_at)
        times += [at for at in due if at is not None]
        times += [pool.restarts.not_before for pool in self._pools.values() if pool.wants_restart]
        self._reactor.wait(min(times) - time.monotonic())

    def _obey_signals(self) -> None:
        for number in self._inbox.take():
            if number in (signal.SIGTERM, signal.SIGINT):
                self._stop(signals.name_of(number))
            elif number == signal.SIGHUP:
                self._reload("SIGHUP")
            elif number == signal.SIGCHLD:
                self._workforce.reap()

    def _hear_maintainer(self) -> None:
        """A stuck or dead maintainer is replaced like any worker; reports wait for the next one."""
        now = time.monotonic()
        if self._maintainer.due(now):
            self._start_maintainer()
        self._upkeep.hear(self._obey_maintainer)
        self._workforce.free_acknowledged()
        ended = self._maintainer.oversee(now)
        if ended and self._burst is not None and self._maintainer.early_deaths >= MAINTAINER_LIMIT:
            self._burst.give_up()
            self._stop("the maintainer cannot be kept alive")

    def _obey_maintainer(self, message: Message) -> None:
        if "recovered" in message:
            found = message["recovered"]
            log = self._log.info if found["supervisors"] else self._log.debug
            log("recovered", **found)
            self._heed(trouble_of(None))
        elif "trouble" in message:
            self._heed(message)
        elif "depths" in message:
            self._obey_depths(message["depths"])
        elif "controls" in message:
            self._obey_controls(message["controls"])
        elif "cancels" in message:
            self._obey_cancels(message["cancels"])
        elif "unhandled" in message:
            self._warn_of_unhandled(message["unhandled"])
        elif "burst" in message:
            self._follow_burst(message["burst"])

    def _warn_of_unhandled(self, types: list[str]) -> None:
        """Once for each, though a new maintainer reports all of them anew."""
        news = sorted(set(types) - self._unhandled)
        self._unhandled = set(types)
        if news:
            self._log.warning("types_unhandled", types=news, hint="no pool takes these types")

    def _heed(self, news: Message) -> None:
        """The database cannot be used, or can be again. In a file that was replaced nothing can be settled any
        more, so what is left is to end at once: whoever starts us again opens the new one.
        """
        self._storage.heed(news)
        self._next_tick = 0.0  # news for `status`
        self._notifier.status(self._storage.trouble or f"{len(self._pools)} pools")
        # A burst does not wait for a file that may come back either.
        if not self._lost and self._storage.gone in ("replaced", "removed" if self._burst else "replaced"):
            self._lost = self._storage.trouble
            self._stop(self._lost)
            self._stop_by = time.monotonic()

    def _obey_depths(self, depths: Mapping[str, Any]) -> None:
        for name, depth in depths.items():
            if name in self._pools:
                self._pools[name].waiting = Waiting(depth["due"], depth["oldest_age"])

    def _obey_controls(self, controls: Mapping[str, Any]) -> None:
        for name, pool in self._pools.items():
            pool.fixed = controls["sizes"].get(name)
        if self._reloads is not None and controls["reloads"] > self._reloads:
            self._reload("supervisor reload")
        self._reloads = controls["reloads"]

    def _obey_cancels(self, cancels: Iterable[tuple[int, int, str]]) -> None:
        for job, token, owner in cancels:
            worker = self._workforce.find(owner)
            if worker is not None:
                worker.slot.request_cancel(job, token, Cancel.REQUESTED)
                worker.enforcement.cancel(job, token, time.monotonic())

    def _follow_burst(self, news: Mapping[str, Any]) -> None:
        if self._burst is not None and not self._stopping:
            dying = any(worker.dead_at is not None for worker in self._workforce)
            unsettled = dying or bool(self._upkeep.unacknowledged)
            why = self._burst.follow(news, self._pools.values(), unsettled=unsettled)
            if why:
                self._stop(why)

    def _mark_time(self) -> None:
        """Most looks at the scoreboard are made once a tick; idle, that is once a second."""
        now = time.monotonic()
        self._ticking = now >= self._next_tick
        if self._ticking:
            self._next_tick = now + self._tick()
            for pool in self._pools.values():
                pool.measure_rate(now)
            self._workforce.look_around(now)
            self._workforce.spare_memory(now)
            self._storage.free_writers(self._workforce.living(), (self._maintainer, self._admin), now)
        self._notifier.alive(now)

    def _tick(self) -> float:
        """Seconds: fine enough for the shortest time limit and for systemd's watchdog."""
        shortest = min((pool.settings.timeout for pool in self._pools.values()), default=TICK * 4)
        return min(max(0.05, shortest / 4), TICK, self._notifier.interval or TICK)

    def _judge_beats(self) -> None:
        if self._ticking:
            for worker in self._workforce.living():
                judge_beat(worker, time.monotonic())

    def _enforce_deadlines(self) -> None:
        now = time.monotonic()
        for worker in self._workforce.living():
            due = enforce_deadline(worker, now)
            if due is not None:
                self._next_tick = min(self._next_tick, max(due, now + 0.01))

    def _watch_memory(self) -> None:
        now = time.monotonic()
        if now >= self._next_memory:
            self._next_memory = now + MEMORY_TICK
            for worker in self._workforce.living():
                watch_memory(worker)

    def _rescale(self) -> None:
        """Bring every pool to the size that it should have. Before recovery is done there are no workers."""
        if not self._upkeep.recovered or self._stopping:
            return
        now = time.monotonic()
        for pool in list(self._pools.values()):
            pool.notice_progress(now)
            before = pool.target
            pool.decide(now)
            if pool.target != before:
                self._ticking = True  # news for `status`
                self._log.info("pool_scaled", pool=pool.name, before=before, target=pool.target, why=pool.reason)
            for _ in range(pool.missing(now)):
                if not self._workforce.ask(pool, self._settings, self._kin(pool)):
                    break
            for worker in pool.leavers():
                self._workforce.drain(worker)
            if pool.closing and not pool.workers:
                del self._pools[pool.name]
                pool.close()
        if not self._ready:
            self._ready = True
            self._notifier.ready(f"{len(self._pools)} pools")

    def _kin(self, pool: Pool) -> dict[str, Pool]:
        """The pools that share this one's template."""
        return {n: p for n, p in self._pools.items() if not p.closing and p.image == pool.image}

    def _publish(self) -> None:
        """Show `status` what we know, and a progress bar how far we are."""
        if self._ticking:
            bulletin = {
                "pid": os.getpid(),
                "maintainer": self._maintainer.pid,
                "admin": self._reception.bulletin(),
                "stopping": self._stopping,
                "trouble": self._storage.trouble,
                "templates": self._workforce.templates(),
                "pools": {name: pool.bulletin() for name, pool in self._pools.items()},
            }
            if bulletin != self._posted:
                self._posted = bulletin
                self._board.post(bulletin)
        if self._observer is not None and self._burst is not None:
            self._observer(self._burst.progress(self._workforce))

    # Reload and stop

    def _reload(self, why: str) -> None:
        """Read the configuration anew; an invalid one changes nothing. Workers are replaced one at a time."""
        if self._stopping:
            return
        self._notifier.reloading()
        try:
            settings = self._load()
            if settings.database != self._settings.database:
                raise ConfigError([f"{settings.path}: database: a reload cannot change it; restart the supervisor"])
        except ConfigError as error:
            self._log.error("reload_refused", why=why, problems=error.problems, kept=str(self._settings.path))
            self._notifier.ready("the configuration could not be reloaded")
            return
        self._settings = settings
        self._unhandled = set()
        configure(settings.log.format, settings.log.level)
        self._make_pools()
        self._workforce.renew_templates()
        self._maintainer.retire()
        self._start_maintainer()
        self._reception.open(settings)
        self._log.info("reloaded", why=why, pools=sorted(settings.pools))
        self._notifier.ready(f"{len(settings.pools)} pools")

    def _stop(self, why: str) -> None:
        """First: finish what runs. Again: release what is left, at once."""
        if self._stopping:
            self._stop_by = time.monotonic()
            return
        grace = max((pool.settings.shutdown_grace for pool in self._pools.values()), default=0.0)
        self._stopping = why
        self._stop_by = time.monotonic() + grace
        self._log.info("stopping", why=why, grace_seconds=grace, workers=len(self._workforce))
        self._notifier.stopping(why)
        self._workforce.drain_all()

    def _finished(self) -> bool:
        if not self._stopping:
            return False
        if len(self._workforce) and time.monotonic() >= self._stop_by:
            for worker in self._workforce:
                worker.kill(autopsy.SHUTDOWN)
            self._stop_by = time.monotonic() + 1.0
        return not len(self._workforce)

    def _leave(self) -> None:
        """See that every end is settled, let the children go, take our name out of the registry."""
        deadline = time.monotonic() + _FAREWELL
        self._reception.close()
        while self._upkeep.unacknowledged and not self._storage.gone and time.monotonic() < deadline:
            self._reactor.wait(0.05)
            self._hear_maintainer()
        self._maintainer.dismiss(_FAREWELL)
        self._workforce.close()
        while time.monotonic() < deadline and kernel.children(os.getpid()):
            self._workforce.reap()
            time.sleep(0.002)
        kernel.kill_children()
        self._owner.release(registered=self._upkeep.recovered)
        self._board.remove()
        self._log.info("stopped", why=self._stopping)
