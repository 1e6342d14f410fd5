"""The templates: each loads an image, forks workers from it on request, and reports how they end.

`Templates` knows which of them forks for which pool, with which code, and when they end.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container, Iterator, Mapping

from supervisor.config.settings import Settings
from supervisor.domain.text import human
from supervisor.store.base import Engine
from supervisor.supervision.release import Release, ReleaseState
from supervisor.supervision.supervised_process import Child
from supervisor.system.channel import Channel, Message
from supervisor.system.scoreboard import Scoreboard
from supervisor.system.signals import Reactor
from supervisor.telemetry import events
from supervisor.template.template import Template
from supervisor.template.worker_start import TemplateSpec
from supervisor.worker.environment import threads_of

_DESCRIPTORS = 2  # sent with each worker: its pidfd and the reading end of its stderr
_PATIENCE = 10.0  # seconds for a ready template to answer; after that it counts as stuck
_UNLOADED = "importing the handler and its set-up before the fork did not end within startup_timeout, {limit}"


class TemplateProcess:
    """One template process, with the code of the `releases` of its pools. Times are monotonic seconds.

    What it has loaded is `ready`, or it is `broken`, which says why, or it is still loading. `proven` are the pools
    that had a ready worker from it. Raises OSError if no process or descriptor is available.
    """

    def __init__(
        self, spec: TemplateSpec, releases: Mapping[str, Release], engine: Engine, board: Scoreboard, now: float
    ) -> None:
        self.spec = spec
        self.releases = dict(releases)
        self.ready, self.broken = False, ""
        self.proven: set[str] = set()
        self.dismissed = False
        self.memory = 0  # bytes, with what its workers share with it; 0: not measured
        self.silent_since = now  # while it loads or workers wait for it; 0.0: before the next look
        self.idle_since: float | None = None

        def become(channel: Channel) -> int:
            return Template(spec, engine, channel, board).run()

        self.child = Child(become, role="template", keep=(spec.news, *spec.wakes.values()))

    # Questions

    @property
    def loading(self) -> bool:
        return not (self.ready or self.broken)

    @property
    def current(self) -> bool:
        """Whether it is from after the last reload."""
        return any(release.current for release in self.releases.values())

    @property
    def kept_for(self) -> list[str]:
        """The pools for which it has the last code that worked, and no newer code has worked."""
        if self.dismissed:
            return []
        return [name for name in sorted(self.proven) if self.releases[name].state is ReleaseState.OUTGOING]

    @property
    def retired(self) -> bool:
        """Whether it forks no more workers. It ends after its last worker."""
        return self.dismissed or not (self.current or self.kept_for)

    def forks(self, release: Release) -> bool:
        """Whether it can fork workers with this code."""
        if self.dismissed or self.broken or self.child.gone or self.releases.get(release.pool) is not release:
            return False
        return release.current or release.pool in self.kept_for

    def why_broken(self, pool: str) -> str:
        """The error for one pool. It names the first pool's handler; the others have their own in the same module."""
        first, own = self.spec.any_pool.handler, self.spec.pools[pool].handler
        return own + self.broken.removeprefix(first) if self.broken.startswith(f"{first}:") else self.broken

    # Requests and answers

    def ask(self, name: str, incarnation: str, pool: str, *, slot: int, device: str | None, cautious: bool) -> None:
        """Request a worker."""
        worker = {"pool": pool, "name": name, "incarnation": incarnation, "slot": slot, "device": device}
        # Without an image, each worker loads the code that is on the disk then.
        unproven = pool not in self.proven or not self.spec.pools[pool].preloads
        self.child.channel.send({"fork": worker | {"cautious": cautious, "unproven": unproven}})

    def receive(self) -> Iterator[tuple[Message, list[int]]]:
        """The messages since the last call. `forked` comes with a worker's pidfd and the reading end of its stderr, or
        with none, if they were lost.
        """
        channel = self.child.channel
        for message, descriptors in channel.receive():
            if "forked" not in message or len(descriptors) != _DESCRIPTORS:
                # The kernel drops descriptors over our limit. A worker that cannot be watched must not run.
                while descriptors:
                    os.close(descriptors.pop())
                if "forked" in message:
                    channel.send({"end": message["forked"]})
            if not message.keys().isdisjoint(("forked", "unforked", "ready")):
                # The time limit starts again: importing may have taken minutes, and workers are forked one by one.
                self.silent_since = 0.0
            yield message, descriptors

    def is_stuck(self, now: float, *, asked: bool) -> bool:
        """Whether it loads, or lets a request wait, for longer than a healthy one does. If it is loading, it is broken
        from now on.
        """
        if self.ready and not asked:
            self.silent_since = 0.0
            return False
        self.silent_since = self.silent_since or now
        limit = _PATIENCE if self.ready else max(pool.startup_timeout for pool in self.spec.pools.values())
        stuck = now - self.silent_since > limit
        if stuck and not self.ready:
            self.broken = _UNLOADED.format(limit=human(limit))
        return stuck

    def dismiss(self) -> None:
        """Let the template end; its end is noticed later."""
        self.dismissed = True
        self.child.channel.finish()


class Templates(list[TemplateProcess]):
    """Pools with the same image share a template.

    The last one that worked for a pool stays, also while the pool has no workers, until newer code has worked there.
    Before that, it ends only if its pool is gone, or for lack of memory.
    """

    def __init__(self, supervisor: str, engine: Engine, board: Scoreboard, reactor: Reactor) -> None:
        super().__init__()
        self._supervisor = supervisor
        self._engine = engine
        self._board = board
        self._reactor = reactor
        self._news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # with which workers wake the supervisor
        reactor.watch(self._news, self._take_news)

    def _take_news(self) -> None:
        with contextlib.suppress(BlockingIOError):  # another process with it, even a handler, may have read it
            os.eventfd_read(self._news)

    # Which template forks

    def current(
        self, release: Release, settings: Settings, sharing: Mapping[str, Release], wakes: Mapping[str, int], now: float
    ) -> TemplateProcess:
        """The template that forks workers with this code now; a new one serves the pools `sharing` it, too. Raises
        OSError if none can be started.
        """
        isolated = release.template_deaths.isolated(now)
        template = self.forking(release, alone=isolated)
        if template is not None:
            return template
        releases = {release.pool: release} if isolated else sharing
        spec = TemplateSpec(
            supervisor=self._supervisor,
            folder=settings.folder,
            pools={name: one.settings for name, one in releases.items()},
            threads={name: threads.number for name, threads in threads_of(settings.pools).items()},
            wakes={name: wakes[name] for name in releases},
            news=self._news,
            log=settings.log,
            keep_done=settings.retention.done != 0,
            alone=isolated,
        )
        template = TemplateProcess(spec, releases, self._engine, self._board, now)
        self._reactor.watch(template.child.descriptor)
        self.append(template)
        return template

    def forking(self, release: Release, *, alone: bool = False) -> TemplateProcess | None:
        """The template that forks workers with this code, if there is one; `alone`: for no other pool."""
        return next((one for one in self if one.forks(release) and (one.spec.alone or not alone)), None)

    # How they end

    def spare_memory(self, used: Container[TemplateProcess], now: float) -> None:
        """End templates that are not needed: retired ones that no worker has `used`, and those idle for long. Not those
        that still replace workers: there may be none for so long because the new code fails.
        """
        for template in self:
            template.idle_since = None if template in used else template.idle_since or now
            if template.idle_since is None:
                continue
            patience = max(pool.idle_timeout for pool in template.spec.pools.values())
            if template.retired or (now - template.idle_since > patience and template.current):
                template.dismiss()

    def unload(self, pools: Container[str], without_old_code: Container[str], used: Container[TemplateProcess]) -> None:
        """End the templates of these pools that have no workers: others need the memory. Old code that nothing newer
        has replaced is kept, but for the `without_old_code` pools.
        """
        for template in self:
            names, kept = template.spec.pools, template.kept_for
            wanted = without_old_code if kept else pools
            if template in used or template.retired or not any(name in wanted for name in names):
                continue
            for name in kept:
                why = "its memory is needed for another model"
                events(process="supervisor").warning("old_code_unloaded", pool=name, why=why)
            template.dismiss()

    def kill_stuck(self, asked: Container[TemplateProcess], now: float) -> list[TemplateProcess]:
        """Kill those that have not answered for too long; workers wait for those that were `asked`. Returns those that
        were still loading.
        """
        stuck = [template for template in self if template.is_stuck(now, asked=template in asked)]
        for template in stuck:
            log = events(process="supervisor")
            log.error("template_stuck", pid=template.child.pid, ready=template.ready)
            template.child.kill()
        return [template for template in stuck if not template.ready]

    def lose(self, template: TemplateProcess) -> None:
        """Remove a template that has ended."""
        self._reactor.unwatch(template.child.descriptor)
        self.remove(template)
        template.child.close()

    def close(self) -> None:
        """Let all templates end; they first kill their remaining descendants."""
        for template in self:
            template.child.close()
