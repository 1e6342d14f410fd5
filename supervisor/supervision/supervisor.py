"""The supervisor: manages the processes, opens no database once it runs, has one thread and never blocks.

`Supervisor.run` has the main loop; each of its steps handles one concern.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from supervisor.config.settings import Settings
from supervisor.domain.errors import StoreError
from supervisor.domain.text import without_password
from supervisor.maintenance.reports import trouble_of
from supervisor.store.base import Engine, OwnerLock, SupervisorRecord
from supervisor.supervision.admin_process import AdminProcess, Serve
from supervisor.supervision.database_health import DatabaseHealth
from supervisor.supervision.maintainer_client import MaintainerClient
from supervisor.supervision.reloading import Reloads, SourceWatch
from supervisor.supervision.service import Service
from supervisor.supervision.stopping import Burst, Stopping
from supervisor.supervision.watchdog import cancel
from supervisor.supervision.workforce import Workforce
from supervisor.system import signals
from supervisor.system.channel import Message
from supervisor.system.scoreboard import Scoreboard, files_of
from supervisor.telemetry import events

_MAINTAINER_LIMIT = 5  # early deaths in a row after which a burst gives up
_FAREWELL = 5.0  # seconds for the last reports and for the children to end


class Supervisor:
    """One run of `supervisor run`. `read` reads the configuration again or raises ConfigError; `serve_admin` runs in
    the admin process. `sources` is for development: changes of these files cause a reload.
    """

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        board: Scoreboard,
        owner: OwnerLock,
        record: SupervisorRecord,
        *,
        read: Callable[[], Settings],
        serve_admin: Serve,
        burst: Burst | None = None,
        sources: SourceWatch | None = None,
        drain_then_exit: bool = False,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._board = board
        service = self._service = Service()
        self._client = MaintainerClient(record, engine, board, service.reactor, burst=burst is not None)
        self._workforce = Workforce(record.id, engine, board, self._client, service)
        self._admin = AdminProcess(serve_admin, board, service.reactor, self._workforce.pools.wakes)
        self._health = DatabaseHealth(engine.ownership.writers(), owner)
        self._reloads = Reloads(read, sources)
        self._stopping = Stopping(burst, when_drained=drain_then_exit)
        service.timers.add("stop", self._stopping.moments)
        service.timers.add("maintainer", lambda: [self._client.process.restart_at])
        if sources is not None:
            service.timers.add("sources", sources.moments)
        service.timers.add("admin", lambda: [self._admin.due_at])
        service.timers.add("pools", lambda: [] if self._stopping.why else self._workforce.next_tries())

    def run(self) -> int:
        """Run until a stop is requested or the burst is over. Returns the exit code.

        Raises StoreError if the database was replaced by another file: only a new start can use it.
        """
        self._start()
        while not self._stopping.over(self._workforce.pools.workers(), time.monotonic()):
            self._wait()
            self._hear_maintainer()
            self._admin.attend(time.monotonic())
            self._workforce.hear()
            self._mark_time()
            self._workforce.watch(ticking=self._service.ticking)
            self._rescale()
            self._heed_sources()
            self._publish()
        self._leave()
        if self._health.lost:
            raise StoreError(self._health.lost)
        return self._stopping.exit_code

    # Start

    def _start(self) -> None:
        self._service.enter(self._settings.log)
        self._workforce.configure(self._settings)
        self._client.start(self._settings, self._workforce.pools)
        self._admin.open(self._settings)
        events(process="supervisor").info(
            "supervisor_started",
            pid=os.getpid(),
            database=without_password(self._engine.url),
            pools=sorted(self._workforce.pools),
            config=str(self._settings.path),
        )

    # The loop's steps

    def _wait(self, most: float = float("inf")) -> None:
        """Sleep until something happens or is due, and obey signals."""
        for number in self._service.wait(most):
            if number in (signal.SIGTERM, signal.SIGINT):
                self._stop(signals.name_of(number))
            elif number == signal.SIGHUP:
                self._reload("SIGHUP")
            elif number == signal.SIGCHLD:
                self._workforce.ends.reap()

    def _hear_maintainer(self) -> None:
        """A stuck or dead maintainer is replaced; reports wait for the next one."""
        now = time.monotonic()
        if self._client.process.due(now):
            self._client.start(self._settings, self._workforce.pools)
        self._client.hear(self._obey_maintainer)
        ended = self._client.process.check(now)
        if self._stopping.burst is not None and ended and self._client.process.early_deaths >= _MAINTAINER_LIMIT:
            self._stopping.burst.gave_up = True
            self._stop("the maintainer dies repeatedly")

    def _obey_maintainer(self, message: Message) -> None:
        pools = self._workforce.pools
        if "recovered" in message:
            self._heed(trouble_of(None))
        elif "trouble" in message:
            self._heed(message)
        elif "depths" in message:
            pools.take_depths(message["depths"])
        elif "duties" in message:
            self._service.tick_soon()
        elif "controls" in message:
            pools.take_sizes(message["controls"]["sizes"])
            if self._reloads.requested(message["controls"]["reloads"]):
                self._reload("supervisor reload", message["controls"]["reloads"])
        elif "cancels" in message:
            cancel(pools, message["cancels"], time.monotonic())
        elif "burst" in message and self._stopping.burst is not None and not self._stopping.why:
            unsettled = self._workforce.ends.unsettled()
            if why := self._stopping.burst.follow(message["burst"], pools.values(), unsettled=unsettled):
                self._stop(why)

    def _heed(self, news: Message) -> None:
        """The database cannot be used, or can be used again. After the file was replaced, nothing can be settled any
        more, so the supervisor ends immediately: its next start opens the new file.
        """
        self._health.heed(news, waits=self._stopping.burst is None)
        self._service.tick_soon()
        self._service.notifier.status(self._health.trouble or f"{len(self._workforce.pools)} pools")
        if self._health.lost and self._stopping.why != self._health.lost:
            self._stop(self._health.lost)
            self._stopping.hurry(time.monotonic())

    def _mark_time(self) -> None:
        """Most looks at the workers and at the machine happen once a tick."""
        now, pools = time.monotonic(), self._workforce.pools
        self._service.begin_tick((min(pool.settings.timeouts) for pool in pools.values()), now)
        if self._service.ticking:
            self._workforce.look_around(now)
            self._health.free_writers(pools.running(), (self._client.process, self._admin.process), now)
            gate = self._board.gate
            busy = self._workforce.heed_gate(lapsed=gate.lapsed and self._settings.on_partition == "stop")
            if self._stopping.when_drained and gate.drained and not (busy or self._stopping.why):
                self._stop("its host is drained")

    def _rescale(self) -> None:
        """There are no workers until recovery is complete."""
        if self._client.recovered and not self._stopping.why:
            if self._workforce.rescale(self._settings):
                self._service.ticking = True  # news for `status`
            self._service.ready_once(f"{len(self._workforce.pools)} pools")

    def _heed_sources(self) -> None:
        """Reload after changes of the files that are watched."""
        if (sources := self._reloads.sources) is not None and not self._stopping.why:
            sources.follow(self._settings)
            if changed := sources.due(time.monotonic()):
                self._reload(f"changed: {changed}")

    def _publish(self) -> None:
        """Post the state for `status`, and report progress to the observer."""
        self._service.outlet.flush()
        now = time.monotonic()
        if self._service.ticking:
            self._reloads.follow(self._workforce.pools, now)
            self._board.post(self._status(now))
        if self._stopping.burst is not None:
            self._stopping.burst.show(self._workforce.pools.workers(), self._workforce.ends.finished_jobs)

    def _status(self, now: float) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "maintainer": self._client.process.pid,
            "admin": self._admin.supervisor_status(),
            "stopping": self._stopping.why,
            "trouble": self._health.trouble,
            "duties": self._client.duties,
            "log_lost": self._service.outlet.lost,
            "reload": self._reloads.status(self._workforce.pools, now),
            **self._workforce.status(now),
        }

    # Reload and stop

    def _reload(self, why: str, number: int | None = None) -> None:
        """Read the configuration again; an invalid one changes nothing. Workers are replaced one at a time."""
        if self._stopping.why:
            return
        self._service.notifier.reloading()
        settings = self._reloads.load(why, number, self._settings, self._workforce.configure)
        if settings is None:
            self._service.tick_soon()
            self._service.notifier.ready("the configuration could not be reloaded")
            return
        self._settings = settings
        self._service.log(settings.log)
        self._client.retire()
        self._client.start(self._settings, self._workforce.pools)
        self._admin.open(settings)
        events(process="supervisor").info("reloaded", why=why, pools=sorted(settings.pools))
        self._service.notifier.ready(f"{len(settings.pools)} pools")

    def _stop(self, why: str) -> None:
        """The first call lets running jobs finish; the second releases the remaining jobs immediately."""
        if self._stopping.why:
            self._stopping.hurry(time.monotonic())
            return
        pools = self._workforce.pools
        grace = max((pool.settings.shutdown_grace for pool in pools.values()), default=0.0)
        self._stopping.begin(why, grace, time.monotonic())
        workers = len(pools.workers())
        self._workforce.drain_all()
        events(process="supervisor").info("stopping", why=why, grace_seconds=grace, workers=workers)
        self._service.notifier.stopping(why)

    def _leave(self) -> None:
        """Wait until every end is settled, and end the children. The maintainer, which ends last, removes
        this supervisor from the registry.
        """
        ends, maintainer = self._workforce.ends, self._client.process
        self._admin.open(None)
        self._workforce.templates.close()
        # A template may have been about to fork: wait until no process is left that could register a worker.
        left = ends.await_children(_FAREWELL, frozenset({maintainer.pid or 0}))
        deadline = time.monotonic() + _FAREWELL
        while self._client.unacknowledged and not self._health.gone and time.monotonic() < deadline:
            self._wait(0.05)
            self._hear_maintainer()
        maintainer.dismiss(_FAREWELL)
        ends.await_children(_FAREWELL, left)
        self._health.release(registered=self._client.recovered)
        for file in files_of(self._board.path):
            file.unlink(missing_ok=True)
        events(process="supervisor").info("stopped", why=self._stopping.why)
