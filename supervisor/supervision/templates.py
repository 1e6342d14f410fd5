"""The templates: each loads an image, forks workers from it on request, and reports how they end.

`Templates` knows which of them forks for which pool, with which code, and when they end.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

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


@dataclass(slots=True)
class Image:
    """What a template has loaded: nothing yet, or it is `ready`, or why it is `broken`."""

    begun_at: float
    ready: bool = False
    broken: str = ""

    @property
    def loading(self) -> bool:
        return not (self.ready or self.broken)


class TemplateProcess:
    """One template process, with the code of the `releases` of its pools. Times are monotonic seconds.

    `proven` are the pools that had a ready worker from it. The constructor raises OSError if no process or
    descriptor is available.
    """

    def __init__(
        self, spec: TemplateSpec, releases: Mapping[str, Release], engine: Engine, board: Scoreboard, now: float
    ) -> None:
        self.spec = spec
        self.releases = dict(releases)
        self.image = Image(now)
        self.proven: set[str] = set()
        self.asked: dict[str, float] = {}  # workers that it has not forked yet, and since when it should
        self.dismissed = False
        self.ended = False  # known before its channel says so
        self.idle_since: float | None = None
        self.memory = 0  # bytes, with what its workers share with it; 0: not measured

        def become(channel: Channel) -> int:
            return Template(spec, engine, channel, board).run()

        self.child = Child(become, role="template", keep=(spec.news, *spec.wakes.values()))

    # Questions

    @property
    def gone(self) -> bool:
        return self.ended or self.child.channel.closed

    @property
    def current(self) -> bool:
        """Whether it is from after the last reload."""
        return any(release.current for release in self.releases.values())

    @property
    def kept_for(self) -> list[str]:
        """The pools for which it has the last code that worked, and no newer code has worked."""
        if self.dismissed or self.gone:
            return []
        return [name for name in sorted(self.proven) if self.releases[name].state is ReleaseState.OUTGOING]

    @property
    def retired(self) -> bool:
        """Whether it forks no more workers. It ends after its last worker."""
        needed = self.current or any(self.releases[name].state is ReleaseState.OUTGOING for name in self.proven)
        return self.dismissed or not needed

    def forks(self, release: Release) -> bool:
        """Whether it can fork workers with this code."""
        if self.dismissed or self.image.broken or self.gone or self.releases.get(release.pool) is not release:
            return False
        return release.current or (release.state is ReleaseState.OUTGOING and release.pool in self.proven)

    def why_broken(self, pool: str) -> str:
        """The error for one pool. It names the first pool's handler; the others have their own in the same module."""
        first, own, why = self.spec.any_pool.handler, self.spec.pools[pool].handler, self.image.broken
        return own + why.removeprefix(first) if why.startswith(f"{first}:") else why

    # Requests and answers

    def ask(self, name: str, incarnation: str, pool: str, *, slot: int, device: str | None, cautious: bool) -> None:
        """Request a worker."""
        self.asked[incarnation] = 0.0
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
            if "forked" in message and len(descriptors) == _DESCRIPTORS:
                yield message, descriptors
                continue
            # The kernel drops descriptors over our limit. A worker that cannot be watched must not run.
            for descriptor in descriptors:
                os.close(descriptor)
            if "forked" in message:
                channel.send({"end": message["forked"]})
            yield message, []

    def answered(self, incarnation: str = "") -> None:
        """It has answered this request, so the time limit of the others starts again: importing may have taken minutes,
        and a thousand workers are forked one after another.
        """
        self.asked.pop(incarnation, None)
        self.asked = dict.fromkeys(self.asked, 0.0)

    def is_stuck(self, now: float) -> bool:
        """Whether it loads, or lets a request wait, for longer than a healthy one does. If it is loading, it is broken
        from now on.
        """
        image = self.image
        if not image.ready:
            limit = max(pool.startup_timeout for pool in self.spec.pools.values())
            if now - image.begun_at <= limit:
                return False
            image.broken = _UNLOADED.format(limit=human(limit))
            return True
        self.asked = {incarnation: since or now for incarnation, since in self.asked.items()}
        return any(now - since > _PATIENCE for since in self.asked.values())

    def dismiss(self) -> None:
        """Let the template end; its end is noticed later."""
        self.dismissed = True
        self.child.channel.finish()


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
        self._templates: list[TemplateProcess] = []
        reactor.watch(self._news, self._take_news)

    def __iter__(self) -> Iterator[TemplateProcess]:
        return iter(list(self._templates))

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
        self._templates.append(template)
        return template

    def forking(self, release: Release, *, alone: bool = False) -> TemplateProcess | None:
        """The template that forks workers with this code, if there is one; `alone`: for no other pool."""
        return next((one for one in self._templates if one.forks(release) and (one.spec.alone or not alone)), None)

    # How they end

    def spare_memory(self, used: Container[TemplateProcess], now: float) -> None:
        """End templates that are not needed: retired ones that no worker has `used`, and those idle for long. Not those
        that still replace workers: there may be none for so long because the new code fails.
        """
        for template in self._templates:
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
        for template in self._templates:
            if template in used or template.retired or not any(name in pools for name in template.spec.pools):
                continue
            if kept := template.kept_for:
                if not any(name in without_old_code for name in template.spec.pools):
                    continue
                for name in kept:
                    why = "its memory is needed for another model"
                    events(process="supervisor").warning("old_code_unloaded", pool=name, why=why)
            template.dismiss()

    def kill_stuck(self, now: float) -> list[TemplateProcess]:
        """Kill those that have not answered for too long. Returns those that were still loading."""
        stuck = [template for template in self._templates if template.is_stuck(now)]
        for template in stuck:
            ready = template.image.ready
            events(process="supervisor").error("template_stuck", pid=template.child.pid, ready=ready)
            template.child.kill()
        return [template for template in stuck if not template.image.ready]

    def kill_unready(self) -> list[str]:
        """Kill templates that are still loading. Returns the workers that were requested from them."""
        asked: list[str] = []
        for template in self._templates:
            if not template.image.ready:
                template.dismissed = True
                asked += template.asked
                template.child.kill()
        return asked

    def lose(self, template: TemplateProcess) -> None:
        """Remove a template that has ended."""
        self._reactor.unwatch(template.child.descriptor)
        self._templates.remove(template)
        template.child.close()

    def close(self) -> None:
        """Let all templates end; they first kill their remaining descendants."""
        for template in self._templates:
            template.child.close()
