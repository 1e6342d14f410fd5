"""The supervisor's end of one template: starts it, asks it for workers, hears how they end."""

from __future__ import annotations

import os
import signal
from typing import Any, Protocol

from supervisor.domain.text import shortened
from supervisor.store.base import Engine
from supervisor.system import child, ending, signals
from supervisor.system.channel import Channel
from supervisor.system.scoreboard import Scoreboard
from supervisor.telemetry import events
from supervisor.template.template import Template, TemplateSpec

_DESCRIPTORS = 2  # that come with a worker: its pidfd and the end of its stderr
PATIENCE = 10.0  # seconds for a ready template to answer; then it is stuck


class Listener(Protocol):
    """Who is told of a template's news."""

    def forked(self, template: TemplateProcess, incarnation: str, pid: int, pidfd: int, stderr: int) -> None: ...

    def exited(self, template: TemplateProcess, incarnation: str, status: int, peak_memory: int) -> None: ...

    def unwatched(self, template: TemplateProcess, incarnation: str, pid: int) -> None: ...

    def unforked(self, template: TemplateProcess, incarnation: str, why: str) -> None: ...

    def broken(self, template: TemplateProcess, why: str) -> None: ...


class TemplateProcess:
    """One template process. Retired ones fork no more, and end when their last worker has.

    A `superseded` one is of before a reload: it forks stand-ins until the pools in `needed_by` have a worker of the
    new code. Making one raises OSError where no process or no descriptor can be had.
    """

    def __init__(self, spec: TemplateSpec, engine: Engine, board: Scoreboard, *, alone: bool = False) -> None:
        self.spec = spec
        self.alone = alone  # of one pool, since templates of it have died
        self.ready = False
        self.retired = False
        self.superseded = False
        self.needed_by: set[str] = set()  # pools that had a ready worker of it, and have none of newer code
        self.why_broken = ""
        self.status: int | None = None
        self.asked: dict[str, float] = {}
        self.idle_since: float | None = None
        self._tried_out: dict[str, float] = {}  # pools that wait for its image alone, and since when

        def become(channel: Channel) -> int:
            return Template(spec, engine, channel, board).run()

        keep = (spec.news, *spec.wakes.values())
        self._channel, self.pid, self.pidfd = child.fork_with_channel(become, role="template", keep=keep)
        self._descriptor = self._channel.fileno()

    @property
    def gone(self) -> bool:
        return self._channel.closed

    @property
    def forks(self) -> bool:
        """Whether it can be asked for workers of the present code."""
        return not (self.retired or self.superseded or self.why_broken or self.gone)

    @property
    def ending(self) -> str:
        """How it ended, as an addition to a sentence; empty if nobody knows."""
        if self.status is None:
            return ""
        if os.WIFSIGNALED(self.status):
            return f" ({signals.name_of(os.WTERMSIG(self.status))})"
        return f" (exit code {os.waitstatus_to_exitcode(self.status)})"

    def fileno(self) -> int:
        """The channel's descriptor, also after its end."""
        return self._descriptor

    def ask(
        self, pool: str, name: str, incarnation: str, slot: int, device: str | None, now: float, *, cautious: bool
    ) -> None:
        """Ask for a worker; the answer comes to the listener."""
        self.asked[incarnation] = now
        worker = {
            "pool": pool,
            "name": name,
            "incarnation": incarnation,
            "slot": slot,
            "device": device,
            "cautious": cautious,
        }
        self._channel.send({"fork": worker})

    def try_out(self, pool: str, now: float) -> None:
        """A pool wants to know whether the image can be loaded, and no worker of it."""
        if not self.ready:
            self._tried_out[pool] = now

    def is_tried_out(self, pool: str) -> bool:
        """Whether that is still to be seen."""
        return pool in self._tried_out

    def take_tried_out(self) -> list[str]:
        """The pools that wait for that: it is known now."""
        found, self._tried_out = list(self._tried_out), {}
        return found

    def hear(self, listener: Listener) -> None:
        """Pass on what the template says."""
        self._channel.flush()
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
        for descriptor in descriptors:  # only a worker comes with some
            os.close(descriptor)
        if "exited" in message:
            listener.exited(self, message["exited"], message["status"], message["peak_memory"])
        elif "unforked" in message:
            self.asked.pop(message["unforked"], None)
            listener.unforked(self, message["unforked"], message["error"])
        elif "ready" in message:
            self.ready = True
            self.take_tried_out()
            self._answered()
        elif "broken" in message:
            self.why_broken = shortened(str(message["broken"]))
            listener.broken(self, self.why_broken)

    def _take(self, incarnation: str, pid: int, descriptors: list[int], listener: Listener) -> None:
        if len(descriptors) == _DESCRIPTORS:
            listener.forked(self, incarnation, pid, *descriptors)
            return
        # The kernel drops what we have no room for. Whoever cannot be watched must not work.
        for descriptor in descriptors:
            os.close(descriptor)
        self._channel.send({"end": incarnation})
        listener.unwatched(self, incarnation, pid)

    def _answered(self) -> None:
        """It is at work: patience with what else it was asked for starts now. Importing may have taken minutes, and
        a thousand workers are forked one after another.
        """
        self.asked = dict.fromkeys(self.asked, 0.0)

    def why_broken_for(self, pool: str) -> str:
        """The error names one pool's handler; others that share the image have their own in the same module."""
        first, own = self.spec.any_pool.handler, self.spec.pools[pool].handler
        return own + self.why_broken.removeprefix(first) if self.why_broken.startswith(f"{first}:") else self.why_broken

    def overdue(self, now: float, startup_timeout: float) -> bool:
        """Whether a request has waited for longer than a healthy template needs."""
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
        """Let the template end; we shall see it go."""
        self.retired = True
        self._channel.finish()

    def close(self) -> None:
        """The same, without looking back: it kills what is left of its descendants first."""
        self._channel.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
