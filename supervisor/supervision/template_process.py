"""The supervisor's side of one template: starts it, requests workers, and receives how they end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping

from supervisor.store.base import Engine
from supervisor.supervision.release import Release, ReleaseState
from supervisor.system import child, ending
from supervisor.system.channel import Channel, Message
from supervisor.system.scoreboard import Scoreboard
from supervisor.template.template import Template, TemplateSpec

_DESCRIPTORS = 2  # sent with each worker: its pidfd and the reading end of its stderr
PATIENCE = 10.0  # seconds for a ready template to answer; after that it counts as stuck


class TemplateProcess:
    """One template process, with the code of the `releases` of its pools.

    `proven` are the pools that had a ready worker from it, or whose code its image has proved. The constructor raises
    OSError if no process or descriptor is available.
    """

    def __init__(
        self,
        spec: TemplateSpec,
        releases: Mapping[str, Release],
        engine: Engine,
        board: Scoreboard,
        now: float,
        *,
        alone: bool = False,
    ) -> None:
        self.spec = spec
        self.releases = dict(releases)
        self.alone = alone  # serves one pool only, because its templates have died
        self.ready = False
        self.dismissed = False
        self.proven: set[str] = set()
        self.why_broken = ""
        self.lacking: dict[str, str] = {}  # pools whose handler its image does not have, and why
        self.status: int | None = None
        self.ended = False  # known before its channel says so
        self.asked: dict[str, float] = {}
        self.idle_since: float | None = None
        self.memory = 0  # bytes, with what its workers share with it; 0: not measured
        self._started_at = now

        def become(channel: Channel) -> int:
            return Template(spec, engine, channel, board).run()

        keep = (spec.news, *spec.wakes.values())
        self._channel, self.pid, self.pidfd = child.fork_with_channel(become, role="template", keep=keep)
        self._descriptor = self._channel.fileno()

    @property
    def gone(self) -> bool:
        return self.ended or self._channel.closed

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
        if self.dismissed or self.why_broken or self.gone or self.releases.get(release.pool) is not release:
            return False
        return release.current or (release.state is ReleaseState.OUTGOING and release.pool in self.proven)

    def fileno(self) -> int:
        """The channel's descriptor, also after its end."""
        return self._descriptor

    def ask(
        self, pool: str, name: str, incarnation: str, slot: int, device: str | None, now: float, *, cautious: bool
    ) -> None:
        """Request a worker."""
        self.asked[incarnation] = now
        worker = {"pool": pool, "name": name, "incarnation": incarnation, "slot": slot, "device": device}
        # Without an image, each worker loads the code that is on the disk then.
        unproven = pool not in self.proven or not self.spec.pools[pool].preloads
        self._channel.send({"fork": worker | {"cautious": cautious, "unproven": unproven}})

    def receive(self) -> Iterator[tuple[Message, list[int]]]:
        """The messages since the last call. `forked` comes with a worker's pidfd and the reading end of its stderr, or
        with none, if they were lost.
        """
        for message, descriptors in self._channel.receive():
            if "forked" in message and len(descriptors) == _DESCRIPTORS:
                yield message, descriptors
                continue
            # The kernel drops descriptors over our limit. A worker that cannot be watched must not run.
            for descriptor in descriptors:
                os.close(descriptor)
            if "forked" in message:
                self._channel.send({"end": message["forked"]})
            yield message, []

    def flush(self) -> None:
        """Send what the channel could not take before."""
        self._channel.flush()

    def answered(self, incarnation: str = "") -> None:
        """It has answered this request, so the time limit of the others starts again: importing may have taken minutes,
        and a thousand workers are forked one after another.
        """
        self.asked.pop(incarnation, None)
        self.asked = dict.fromkeys(self.asked, 0.0)

    def why_broken_for(self, pool: str) -> str:
        """The error for one pool. It names the first pool's handler; the others have their own in the same module."""
        first, own = self.spec.any_pool.handler, self.spec.pools[pool].handler
        return own + self.why_broken.removeprefix(first) if self.why_broken.startswith(f"{first}:") else self.why_broken

    def overdue(self, now: float, startup_timeout: float) -> bool:
        """Whether it loads, or lets a request wait, for longer than a healthy one does."""
        if not self.ready:
            return now - self._started_at > startup_timeout
        for incarnation, since in self.asked.items():
            if since == 0.0:
                self.asked[incarnation] = now
            elif now - since > PATIENCE:
                return True
        return False

    def kill(self) -> None:
        if self.pidfd >= 0:
            ending.send_signal(self.pidfd, signal.SIGKILL)

    def dismiss(self) -> None:
        """Let the template end; its end is noticed later."""
        self.dismissed = True
        self._channel.finish()

    def close(self) -> None:
        """The same, without waiting for its end. It first kills its remaining descendants."""
        self._channel.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
