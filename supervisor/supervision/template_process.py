"""The supervisor's side of one template: starts it, requests workers, and receives how they end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from typing import Any, Protocol

from supervisor.domain.text import shortened
from supervisor.store.base import Engine
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

    def loaded(self, template: TemplateProcess, tried_out: Iterable[str]) -> None: ...


class TemplateProcess:
    """One template process. A retired one forks no more workers, and ends after its last worker.

    A `superseded` one is from before a reload: until it is retired, it forks replacements for the pools in
    `needed_by`, which have no ready worker with the new code. The constructor raises OSError if no process or
    descriptor is available.
    """

    def __init__(self, spec: TemplateSpec, engine: Engine, board: Scoreboard, *, alone: bool = False) -> None:
        self.spec = spec
        self.alone = alone  # serves one pool only, because its templates have died
        self.ready = False
        self.retired = False
        self.superseded = False
        self.needed_by: set[str] = set()  # pools that had a ready worker from it, and have none with newer code
        self.why_broken = ""
        self.lacking: dict[str, str] = {}  # pools whose handler its image does not have, and why
        self.status: int | None = None
        self.ended = False  # known before its channel says so
        self.asked: dict[str, float] = {}
        self.idle_since: float | None = None
        self.memory = 0  # bytes, with what its workers share with it; 0: not measured
        self._tried_out: dict[str, float] = {}  # pools that wait only for its image, and since when

        def become(channel: Channel) -> int:
            return Template(spec, engine, channel, board).run()

        keep = (spec.news, *spec.wakes.values())
        self._channel, self.pid, self.pidfd = child.fork_with_channel(become, role="template", keep=keep)
        self._descriptor = self._channel.fileno()

    @property
    def gone(self) -> bool:
        return self.ended or self._channel.closed

    @property
    def forks(self) -> bool:
        """Whether it can fork workers with the current code."""
        return not (self.retired or self.superseded or self.why_broken or self.gone)

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
        unproven = pool not in self.needed_by or not self.spec.pools[pool].preloads
        self._channel.send({"fork": worker | {"cautious": cautious, "unproven": unproven}})

    def try_out(self, pool: str, now: float) -> None:
        """Check whether the image can be loaded, without starting a worker."""
        if not self.ready:
            self._tried_out[pool] = now

    def is_tried_out(self, pool: str) -> bool:
        """Whether that check is still pending."""
        return pool in self._tried_out and not self.superseded

    def take_tried_out(self) -> list[str]:
        """End the check and return the pools that waited for it: none, if a reload has superseded it."""
        found, self._tried_out = [] if self.superseded else list(self._tried_out), {}
        return found

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
            listener.loaded(self, self.take_tried_out())
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
        """Whether a request has waited longer than a healthy template needs."""
        if any(now - since > startup_timeout for since in self._tried_out.values()):
            return True
        for incarnation, since in self.asked.items():
            if since == 0.0:
                self.asked[incarnation] = now
            elif now - since > (PATIENCE if self.ready else startup_timeout):
                return True
        return False

    def kill(self) -> None:
        if self.pidfd >= 0:
            ending.send_signal(self.pidfd, signal.SIGKILL)

    def dismiss(self) -> None:
        """Let the template end; its end is noticed later."""
        self.retired = True
        self._channel.finish()

    def close(self) -> None:
        """The same, without waiting for its end. It first kills its remaining descendants."""
        self._channel.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def keeps_old_code(template: TemplateProcess) -> bool:
    """Whether it has the last code that worked for some pool, and no newer code has proved itself there."""
    return template.superseded and bool(template.needed_by) and not (template.retired or template.gone)
