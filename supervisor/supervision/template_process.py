"""The supervisor's side of one template: starts it, requests workers, and receives how they end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from supervisor.domain.text import shortened
from supervisor.store.base import Engine
from supervisor.supervision.release import Release, ReleaseState
from supervisor.system import child, ending, signals
from supervisor.system.channel import Channel
from supervisor.system.scoreboard import Scoreboard
from supervisor.telemetry import events
from supervisor.template.template import Template, TemplateSpec

_DESCRIPTORS = 2  # sent with each worker: its pidfd and the reading end of its stderr
PATIENCE = 10.0  # seconds for a ready template to answer; after that it counts as stuck


class Listener(Protocol):
    """Receives the messages of a template."""

    def forked(self, template: TemplateProcess, incarnation: str, pid: int, pidfd: int, stderr: int) -> None: ...

    def exited(self, template: TemplateProcess, incarnation: str, status: int, peak_memory: int) -> None: ...

    def swept(self, template: TemplateProcess, incarnations: Iterable[str]) -> None: ...

    def unwatched(self, template: TemplateProcess, incarnation: str, pid: int) -> None: ...

    def unforked(self, template: TemplateProcess, incarnation: str, why: str) -> None: ...

    def broken(self, template: TemplateProcess, why: str) -> None: ...

    def loaded(self, template: TemplateProcess) -> None: ...


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

    @property
    def ending(self) -> str:
        """How it ended, as a suffix for a sentence; empty if unknown."""
        return "" if self.status is None else f" ({signals.ending(os.waitstatus_to_exitcode(self.status))})"

    def fileno(self) -> int:
        """The channel's descriptor, also after its end."""
        return self._descriptor

    def ask(
        self, pool: str, name: str, incarnation: str, slot: int, device: str | None, now: float, *, cautious: bool
    ) -> None:
        """Request a worker; the listener gets the answer."""
        self.asked[incarnation] = now
        worker = {"pool": pool, "name": name, "incarnation": incarnation, "slot": slot, "device": device}
        # Without an image, each worker loads the code that is on the disk then.
        unproven = pool not in self.proven or not self.spec.pools[pool].preloads
        self._channel.send({"fork": worker | {"cautious": cautious, "unproven": unproven}})

    def flush(self) -> None:
        """Send what the channel could not take before."""
        self._channel.flush()

    def hear(self, listener: Listener) -> None:
        """Pass the template's messages to the listener."""
        for message, descriptors in self._channel.receive():
            try:
                self._pass_on(message, descriptors, listener)
            except (LookupError, TypeError, ValueError) as error:
                # The handler's code shares the template's process, and may have written into the channel.
                events(process="supervisor").error("message_garbled", of=f"template {self.pid}", error=repr(error))

    def _pass_on(self, message: dict[str, Any], descriptors: list[int], listener: Listener) -> None:
        if "forked" in message:
            self.asked.pop(message["forked"], None)
            self._answered()
            self._take(message["forked"], int(message["pid"]), descriptors, listener)
            return
        for descriptor in descriptors:  # only `forked` messages carry descriptors
            os.close(descriptor)
        if "exited" in message:
            listener.exited(self, message["exited"], message["status"], message["peak_memory"])
        elif "swept" in message:
            listener.swept(self, message["swept"])
        elif "unforked" in message:
            self.asked.pop(message["unforked"], None)
            listener.unforked(self, message["unforked"], message["error"])
        elif "ready" in message:
            self.ready = True
            found = dict(message.get("lacking", {}))
            self.lacking = {str(pool): shortened(str(why)) for pool, why in found.items()}
            self._answered()
            listener.loaded(self)
        elif "broken" in message:
            self.why_broken = shortened(str(message["broken"]))
            listener.broken(self, self.why_broken)

    def _take(self, incarnation: str, pid: int, descriptors: list[int], listener: Listener) -> None:
        if len(descriptors) == _DESCRIPTORS:
            listener.forked(self, incarnation, pid, *descriptors)
            return
        # The kernel drops descriptors over our limit. A worker that cannot be watched must not run.
        for descriptor in descriptors:
            os.close(descriptor)
        self._channel.send({"end": incarnation})
        listener.unwatched(self, incarnation, pid)

    def _answered(self) -> None:
        """The template has answered, so the time limit of its other requests starts again: importing may have taken
        minutes, and a thousand workers are forked one after another.
        """
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
