"""The templates: which of them forks workers for which pool, with which code, and when they end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container, Iterable, Iterator, Mapping

from supervisor.config.settings import Settings
from supervisor.domain.text import human
from supervisor.store.base import Engine
from supervisor.supervision.pool import Pool
from supervisor.supervision.release import Release
from supervisor.supervision.template_process import TemplateProcess
from supervisor.supervision.worker_process import WorkerProcess
from supervisor.system.reactor import Reactor
from supervisor.system.scoreboard import Scoreboard
from supervisor.telemetry import events
from supervisor.template.template import TemplateSpec
from supervisor.worker.placement import threads_of

_UNLOADED = "importing the handler and its set-up before the fork did not end within startup_timeout, {limit}"


class Templates:
    """Pools with the same image share a template.

    The last one that worked for a pool stays, also while the pool has no workers, until newer code has worked there.
    Before that, it ends only if its pool is gone, or for lack of memory.
    """

    def __init__(self, supervisor: str, engine: Engine, board: Scoreboard, reactor: Reactor) -> None:
        self._supervisor = supervisor
        self._engine = engine
        self._board = board
        self._reactor = reactor
        self._news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # with which workers wake the supervisor
        self._log = events(process="supervisor")
        self._templates: list[TemplateProcess] = []
        reactor.watch(self._news, self._take_news)

    def __iter__(self) -> Iterator[TemplateProcess]:
        return iter(list(self._templates))

    def _take_news(self) -> None:
        with contextlib.suppress(BlockingIOError):  # another process with it, even a handler, may have read it
            os.eventfd_read(self._news)

    def pids(self) -> list[int]:
        return [template.pid for template in self._templates]

    # Which template forks

    def current(self, pool: Pool, settings: Settings, sharing: Mapping[str, Pool], now: float) -> TemplateProcess:
        """The template that forks a pool's workers now. Raises OSError if none can be started."""
        isolated = pool.code.current.template_deaths.isolated(now)
        template = self.forking(pool.code.current, alone=isolated)
        if template is not None:
            return template
        pools = {pool.name: pool} if isolated else sharing
        spec = TemplateSpec(
            supervisor=self._supervisor,
            folder=settings.folder,
            pools={name: p.settings for name, p in pools.items()},
            threads={name: threads.number for name, threads in threads_of(settings.pools).items()},
            wakes={name: p.wake for name, p in pools.items()},
            news=self._news,
            log=settings.log,
            keep_done=settings.retention.done != 0,
        )
        releases = {name: p.code.current for name, p in pools.items()}
        template = TemplateProcess(spec, releases, self._engine, self._board, now, alone=isolated)
        self._reactor.watch(template.fileno())
        self._templates.append(template)
        return template

    def forking(self, release: Release, *, alone: bool = False) -> TemplateProcess | None:
        """The template that forks workers with this code, if there is one; `alone`: for no other pool."""
        return next((one for one in self._templates if one.forks(release) and (one.alone or not alone)), None)

    @property
    def loading(self) -> bool:
        """Whether one has not loaded its code yet, so that nobody knows what it will use."""
        return any(not (one.ready or one.retired or one.why_broken or one.gone) for one in self._templates)

    # How they end

    def spare_memory(self, workers: Iterable[WorkerProcess], now: float) -> None:
        """End templates that are not needed: retired ones without workers, and those idle for long. Not those that
        still replace workers: there may be none for so long because the new code fails.
        """
        used = {worker.template for worker in workers}
        for template in self._templates:
            template.idle_since = None if template in used else template.idle_since or now
            patience = max(pool.idle_timeout for pool in template.spec.pools.values())
            if template.idle_since is None:
                continue
            if template.retired or (now - template.idle_since > patience and template.current):
                template.dismiss()

    def unload(self, pools: Container[str], without_old_code: Container[str], workers: Iterable[WorkerProcess]) -> None:
        """End the templates of these pools that have no workers: others need the memory. Old code that nothing newer
        has replaced is kept, but for the `without_old_code` pools.
        """
        used = {worker.template for worker in workers}
        for template in self._templates:
            if template in used or template.retired or not any(name in pools for name in template.spec.pools):
                continue
            if kept := template.kept_for:
                if not any(name in without_old_code for name in template.spec.pools):
                    continue
                for name in kept:
                    self._log.warning("old_code_unloaded", pool=name, why="other pools need its memory")
            template.dismiss()

    def stuck(self, now: float) -> list[TemplateProcess]:
        """Kill those that have not answered for too long. Returns those that were still loading; they say why."""
        found = []
        for template in self._templates:
            limit = max(pool.startup_timeout for pool in template.spec.pools.values())
            if template.overdue(now, limit):
                self._log.error("template_stuck", pid=template.pid, ready=template.ready)
                if not template.ready:
                    template.why_broken = _UNLOADED.format(limit=human(limit))
                    found.append(template)
                template.kill()
        return found

    def retire_unready(self) -> list[str]:
        """Kill templates that are still loading. Returns the workers that were requested from them."""
        asked: list[str] = []
        for template in self._templates:
            if not template.ready:
                template.dismissed = True
                asked += template.asked
                template.kill()
        return asked

    def lose(self, template: TemplateProcess) -> None:
        """Remove a template that has ended."""
        self._reactor.unwatch(template.fileno())
        self._templates.remove(template)
        template.close()

    def close(self) -> None:
        """Let all templates end; they first kill their remaining descendants."""
        for template in self._templates:
            template.close()
